"""What a vLLM process needs around it to be a rehearsal."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deploy.rehearsal.deepseek_v4 import publish_checkpoint
from deploy.rehearsal.errors import RehearsalError
from deploy.rehearsal.models import HEALTHY, VARIANTS, publish_models
from deploy.rehearsal.shim.dspark_rehearsal.faults import DRAFT_FAULTS, DROP_DRAFT_ATTRIBUTE
from deploy.rehearsal.tree import publish_tree
from patches.loadcheck.card import CARDS

ROOT = Path(__file__).parents[2]
SHIM = Path(__file__).with_name("shim")

#: The profile with a Qwen3 target and draft, and the one with the AMD classes of DeepSeek V4.
QWEN, AMD = "rehearsal", "rehearsal-amd"
PROFILES = (QWEN, AMD)

#: The card that the AMD classes are told they run on, unless REHEARSAL_ARCH names another.
DEFAULT_ARCH = "gfx950"

#: Every legal value of REHEARSAL_FAULT; those of the draft are for the AMD classes too.
FAULTS = (*DRAFT_FAULTS, *(variant for variant in VARIANTS if variant != HEALTHY))

# Takes away what PR 51145 gave the draft class.
_ATTRIBUTE_PATCH = "0001-rocm-dspark-draft-id-to-target-id.patch"
# What only `RehearsalEnvironment` decides.
_OWN = ("REHEARSAL_FAULT", "REHEARSAL_ARCH")


@dataclass(frozen=True)
class RehearsalEnvironment:
    """Variables to add and folders to put on PYTHONPATH; flags and all else are the recipe's.

    `lacks` names the file of the one patch that the tree is without, "" for the whole series.
    """

    pythonpath: tuple[Path, ...]
    additions: Mapping[str, str] = field(default_factory=dict)
    lacks: str = ""

    @property
    def tree(self) -> Path:
        """The folder that holds the ``vllm/`` of this rehearsal."""
        return self.pythonpath[0]

    def over(self, environ: Mapping[str, str]) -> dict[str, str]:
        """``environ`` with the additions in place of what it has of them, and of PYTHONPATH."""
        kept = {key: value for key, value in environ.items() if key not in _OWN}
        path = ":".join(str(folder) for folder in self.pythonpath)
        return {**kept, **self.additions, "PYTHONPATH": path}


def check_profile(name: str) -> str:
    """The name of a rehearsal's profile. Raises RehearsalError with exit code 2 for another."""
    if name not in PROFILES:
        raise RehearsalError(
            f"--profile {name}: not a rehearsal: use one of {', '.join(PROFILES)}", exit_code=2
        )
    return name


def check_fault(fault: str | None, profile: str = QWEN) -> str | None:
    """The name of a fault, or None for no fault (None or an empty value).

    Raises RehearsalError with exit code 2 for a name that is not in `FAULTS`, or not for the
    profile.
    """
    legal = tuple(DRAFT_FAULTS) if profile == AMD else FAULTS
    return _checked("REHEARSAL_FAULT", "fault", fault, legal)


def check_arch(arch: str | None) -> str:
    """The name of a card's architecture, `DEFAULT_ARCH` for None or an empty value.

    Raises RehearsalError with exit code 2 for one that is not supported.
    """
    return _checked("REHEARSAL_ARCH", "architecture", arch, tuple(CARDS)) or DEFAULT_ARCH


def prepare(
    cache: Path,
    fault: str | None = None,
    *,
    profile: str = QWEN,
    arch: str = DEFAULT_ARCH,
    patched: bool = True,
) -> RehearsalEnvironment:
    """Build, or reuse, the models and the vLLM tree below ``cache``; arm ``fault`` if given.

    ``arch`` is for the AMD classes. ``patched=False`` runs vLLM without the patch series.

    Raises RehearsalError; an unknown fault is refused before anything is written.
    """
    fault = check_fault(fault, profile)
    lacks = ""
    additions = {
        # What vLLM keeps lies with the rest, and not in a user's own folders.
        "VLLM_CACHE_ROOT": str(cache / "vllm-cache"),
        "VLLM_CONFIG_ROOT": str(cache / "vllm-config"),
    }
    if profile == AMD:
        # The real class loses its attribute with the patch that gives it; nothing is to be armed.
        lacks = _ATTRIBUTE_PATCH if fault == DROP_DRAFT_ATTRIBUTE else ""
        tree = publish_tree(cache, patched=patched, without=lacks)
        home = publish_checkpoint(cache / "models")
        additions["REHEARSAL_ARCH"] = arch
        path: tuple[Path, ...] = (tree, SHIM, ROOT)
        fault = None if lacks else fault
    else:
        tree = publish_tree(cache, patched=patched)
        home = publish_models(cache / "models") / (fault if fault in VARIANTS else HEALTHY)
        path = (tree, SHIM)
    additions["REHEARSAL_HOME"] = str(home)
    if fault:
        additions["REHEARSAL_FAULT"] = fault
    return RehearsalEnvironment(path, additions, lacks)


def _checked(setting: str, kind: str, value: str | None, legal: tuple[str, ...]) -> str | None:
    if value and value not in legal:
        raise RehearsalError(
            f"{setting}={value}: unknown {kind}: use one of {', '.join(legal)}", exit_code=2
        )
    return value or None
