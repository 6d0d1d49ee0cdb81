"""What a vLLM process needs around it to be a rehearsal."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deploy.rehearsal.errors import RehearsalError
from deploy.rehearsal.models import HEALTHY, VARIANTS, publish_models
from deploy.rehearsal.shim.dspark_rehearsal.faults import DRAFT_FAULTS
from deploy.rehearsal.tree import publish_tree

SHIM = Path(__file__).with_name("shim")

#: Every legal value of REHEARSAL_FAULT.
FAULTS = (*DRAFT_FAULTS, *(variant for variant in VARIANTS if variant != HEALTHY))


@dataclass(frozen=True)
class RehearsalEnvironment:
    """Variables to add and folders to put on PYTHONPATH; flags and all else are the recipe's."""

    pythonpath: tuple[Path, ...]
    additions: Mapping[str, str] = field(default_factory=dict)

    @property
    def tree(self) -> Path:
        """The folder that holds the ``vllm/`` of this rehearsal."""
        return self.pythonpath[0]

    def over(self, environ: Mapping[str, str]) -> dict[str, str]:
        """``environ`` with the additions, which also replace PYTHONPATH and REHEARSAL_FAULT."""
        kept = {key: value for key, value in environ.items() if key != "REHEARSAL_FAULT"}
        path = ":".join(str(folder) for folder in self.pythonpath)
        return {**kept, **self.additions, "PYTHONPATH": path}


def check_fault(fault: str | None) -> str | None:
    """The name of a fault, or None for no fault (None or an empty value).

    Raises RehearsalError with exit code 2 for a name that is not in `FAULTS`.
    """
    if not fault:
        return None
    if fault not in FAULTS:
        raise RehearsalError(
            f"REHEARSAL_FAULT={fault}: unknown fault: use one of {', '.join(FAULTS)}", exit_code=2
        )
    return fault


def prepare(cache: Path, fault: str | None = None, *, patched: bool = True) -> RehearsalEnvironment:
    """Build, or reuse, the models and the vLLM tree below ``cache``; arm ``fault`` if given.

    ``patched=False`` runs vLLM without the patch series.

    Raises RehearsalError; an unknown fault is refused before anything is written.
    """
    fault = check_fault(fault)
    variant = fault if fault in VARIANTS else HEALTHY
    tree = publish_tree(cache, patched=patched)
    home = publish_models(cache / "models") / variant
    additions = {
        "REHEARSAL_HOME": str(home),
        # vLLM inspects a model class in a process of its own, once per cache: seconds per start.
        "VLLM_CACHE_ROOT": str(cache / "vllm-cache"),
        "VLLM_CONFIG_ROOT": str(cache / "vllm-config"),
    }
    if fault:
        additions["REHEARSAL_FAULT"] = fault
    return RehearsalEnvironment((tree, SHIM), additions)
