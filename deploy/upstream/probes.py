"""Whether the sources of a vLLM say what the table of facts says of its release."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.recipe import facts

Probe = Callable[[str], bool]
"""Whether the text of the fact's source file has it. Raises LookupError where the passage that it
reads is not there."""


@dataclass(frozen=True)
class Seen:
    """What the table expects of a release and what its source file says; None: cannot be told."""

    key: str
    expected: bool
    seen: bool | None
    why: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the table is right about the release, as far as its source tells."""
        return self.seen is self.expected


def look(root: Path, version: str) -> tuple[Seen, ...]:
    """Hold every fact of the table against the tree at `root`, which holds ``vllm/``."""
    return tuple(_seen(root, key, fact, version) for key, fact in facts.load().items())


def _seen(root: Path, key: str, fact: facts.Fact, version: str) -> Seen:
    expected = fact.holds(version)
    try:
        return Seen(key, expected, PROBES[key]((root / fact.source).read_text("utf-8")))
    except (OSError, LookupError) as error:
        why = "is not there" if isinstance(error, OSError) else str(error)
        return Seen(key, expected, None, f"{fact.source} {why}")


def _has(text: str) -> Probe:
    """Whether the file says this."""
    return lambda source: text in source


def _lacks(text: str) -> Probe:
    """Whether the file does not say this."""
    return lambda source: text not in source


def _v1_on_rocm(source: str) -> bool:
    """V4 stands in the list, and the list yields to nothing."""
    listed = re.search(r"ROCM_DEFAULT_MRV1_ARCHITECTURES = frozenset\(\s*\{([^}]*)\}", source)
    return (
        bool(listed and "DeepseekV4ForCausalLM" in listed[1])
        and "Skipping the ROCm V1 model runner default" not in source
    )


def _v2_forced(source: str) -> bool:
    """The method alone decides for V2, in the property that chooses."""
    chooses = source.partition("def use_v2_model_runner(")[2].partition("\n    def ")[0]
    forced = r'speculative_config\.method == "dspark"\s*\):?\s*\n?\s*:?\s*return True'
    return re.search(forced, chooses) is not None


def _logits_in_float32(source: str) -> bool:
    """The type of the tensor that keeps the draft's logits."""
    made = re.search(r"self\.draft_logits = torch\.\w+\(([^)]*)\)", source)
    if made is None:
        raise LookupError("no longer makes self.draft_logits")
    return "torch.float32" in made[1]


def _one_step(source: str) -> bool:
    """On ROCm the size is rounded up to 256 whatever the backend."""
    rounds = source.partition("def mxfp4_round_up_hidden_size_and_intermediate_size(")[2]
    on_rocm = rounds.partition("current_platform.is_rocm():")[2].partition("\n    el")[0]
    if "256" not in on_rocm:
        raise LookupError("no longer rounds up to 256 on ROCm")
    return "128" not in on_rocm


def _eager_on_gfx950(source: str) -> bool:
    """Where no mode is given, the platform sets NONE for this model on this architecture."""
    sets = source.partition("compilation_config.cudagraph_mode is None")[2][:700]
    return all(
        word in sets for word in ("on_gfx950()", "DeepseekV4ForCausalLM", "CUDAGraphMode.NONE")
    )


PROBES: Mapping[str, Probe] = {
    "k-below-block-refused": _has("DSpark requires num_speculative_tokens >= "),
    "pipeline-parallel-refused": _has("DSpark does not support pipeline parallelism."),
    "v2-forced": _v2_forced,
    "v1-on-rocm": _v1_on_rocm,
    "v1-refuses-dspark": _has('unsupported.append("dspark speculative decoding")'),
    "draft-model-key": _lacks("self.draft_model_config.quantization = "),
    "draft-slots-per-sequence": _has("* self.scheduler_config.max_num_seqs"),
    "draft-logits-float32": _logits_in_float32,
    "mxfp4-padding": _one_step,
    "eager-on-gfx950": _eager_on_gfx950,
    "indexer-mxfp4": _has('attention_config.indexer_kv_dtype = "mxfp4"'),
    "prints-with-prefix": _has("def _add_prefix("),
    "tool-arguments-free": _has("def resolve_tool_strictness("),
    "json-logs": _has('log_formatter == "json"'),
}
