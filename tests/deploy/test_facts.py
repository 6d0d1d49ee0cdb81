"""The table of facts: each held against the file of vLLM that it names, in every release."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy import facts
from deploy.tables import RecipeError
from tests.support.vllm_trees import SHA256, tree

RELEASES = [version for version in SHA256 if version >= "0.26.0"]

Probe = Callable[[str], bool]


def has(text: str) -> Probe:
    """Whether the file says this."""
    return lambda source: text in source


def lacks(text: str) -> Probe:
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
    assert made is not None
    return "torch.float32" in made[1]


def _one_step(source: str) -> bool:
    """On ROCm the size is rounded up to 256 whatever the backend."""
    rounds = source.partition("def mxfp4_round_up_hidden_size_and_intermediate_size(")[2]
    on_rocm = rounds.partition("current_platform.is_rocm():")[2].partition("\n    el")[0]
    assert "256" in on_rocm
    return "128" not in on_rocm


def _eager_on_gfx950(source: str) -> bool:
    """Where no mode is given, the platform sets NONE for this model on this architecture."""
    sets = source.partition("compilation_config.cudagraph_mode is None")[2][:700]
    return all(
        word in sets for word in ("on_gfx950()", "DeepseekV4ForCausalLM", "CUDAGraphMode.NONE")
    )


PROBES: dict[str, Probe] = {
    "k-below-block-refused": has("DSpark requires num_speculative_tokens >= "),
    "pipeline-parallel-refused": has("DSpark does not support pipeline parallelism."),
    "v2-forced": _v2_forced,
    "v1-on-rocm": _v1_on_rocm,
    "v1-refuses-dspark": has('unsupported.append("dspark speculative decoding")'),
    "draft-model-key": lacks("self.draft_model_config.quantization = "),
    "draft-slots-per-sequence": has("* self.scheduler_config.max_num_seqs"),
    "draft-logits-float32": _logits_in_float32,
    "mxfp4-padding": _one_step,
    "eager-on-gfx950": _eager_on_gfx950,
    "indexer-mxfp4": has('attention_config.indexer_kv_dtype = "mxfp4"'),
    "prints-with-prefix": has("def _add_prefix("),
    "json-logs": has('log_formatter == "json"'),
}


def test_every_fact_has_a_probe() -> None:
    """None is taken on trust."""
    assert PROBES.keys() == facts.load().keys()


@pytest.mark.parametrize("version", RELEASES)
def test_the_sources_of_a_release_say_what_the_table_says(version: str) -> None:
    """Each probe on the real file, in the releases that have the fact and in those that do not."""
    root = tree(version)
    seen = {
        key: PROBES[key]((root / fact.source).read_text("utf-8"))
        for key, fact in facts.load().items()
    }
    assert seen == {key: fact.holds(version) for key, fact in facts.load().items()}


def test_a_fact_begins_and_ends_with_a_release() -> None:
    """From `since` on, before `until`, pre-releases and builds of a release included."""
    fact = facts.Fact("s", since="0.26.0", until="0.28.0", source="f")
    held = [
        v
        for v in ("0.25.1", "0.26.0", "0.27.1+rocm723", "0.28.0rc1", "0.28.0", "1.0")
        if fact.holds(v)
    ]
    assert held == ["0.26.0", "0.27.1+rocm723", "0.28.0rc1"]
    assert facts.Fact("s", since="0.26.0", source="f").holds("9.9")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1", "a: got 1; give a table"),
        ("[a]\nsays = 's'\nsource = 'f'", "a.since: is missing; add it"),
        ("[a]\nsays = 's'\nsince = 1", "a.since: got 1; give a str"),
        ("[a]\nsays = 's'\nsince = '0.1'\nsource = 'f'\nuntill = '0.2'", "a.untill: got '0.2'; no such key; did you mean until?"),
    ],
)  # fmt: skip
def test_a_bad_table_is_refused_with_one_line(tmp_path: Path, text: str, line: str) -> None:
    """The file, the key, the value seen, the fix."""
    file = tmp_path / "facts.toml"
    file.write_text(text, "utf-8")
    with pytest.raises(RecipeError) as refused:
        facts.load(file)
    assert str(refused.value).startswith(f"{file}: {line}")
