"""The rules of a plan that depend on the release of vLLM: refused where it is wrong, and only there."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from deploy import plan, recipe
from deploy.plan import memory, rules
from deploy.plan.rules import Intent
from deploy.preflight.checks.plan import mxfp4_shard, rule_finding
from deploy.preflight.findings import Unknown
from deploy.preflight.start import Start

RECIPE = recipe.load()
RELEASES = ("0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")


def intent(version: str, *words: str, name: str = "mi355x", **environ: str) -> Intent:
    """What would be started of a profile on a release, with flags and environment laid over it."""
    profile = RECIPE.profile(name)
    given = plan.read_flags(words, profile.vllm.vocabulary)
    return replace(plan.intent(profile, given, environ), vllm_version=version)


def draft(**settings: object) -> str:
    """A speculative table with these settings laid over the recipe's."""
    return json.dumps({**(RECIPE.profile("mi355x").speculative or {}), **settings})


# A rule, what asks for it, and the releases that refuse, that warn, and that say nothing.
CASES = [
    ("dspark.k_below_block", ("--speculative-config", draft(num_speculative_tokens=3)), "RRWWWWWW"),
    ("dspark.k_below_block", ("--speculative-config", draft(num_speculative_tokens=0)), "RRRRRRRR"),
    ("dspark.pipeline_parallel", ("--pipeline-parallel-size", "2"), "RRRRWWWW"),
    ("dspark.draft_model", ("--speculative-config", draft(model="m")), "RR------"),
    ("dspark.slots", ("--max-num-batched-tokens", "2048"), "RR------"),
    ("dspark.v2_runner", (), "---RR---"),
    ("attention.indexer_keys", (), "-------W"),
    ("attention.indexer_keys", ("--attention-config", '{"indexer_kv_dtype": "fp8"}'), "--------"),
    ("graphs.choice", ("-cc", "{}"), "WWWW-WWW"),
    ("vllm.faults", (), "R-RRRW--"),
    ("vllm.faults", ("--max-model-len", "2048", "--moe-backend", "auto"), "R-RR----"),
]


@pytest.mark.parametrize(("rule", "words", "said"), CASES, ids=[f"{c[0]} {c[2]}" for c in CASES])
def test_a_rule_speaks_where_its_fact_holds(rule: str, words: tuple[str, ...], said: str) -> None:
    """R refuses, W warns, - says nothing, release by release."""
    found = ""
    for version in RELEASES:
        findings = [f for f in rules.check(intent(version, *words)) if f.rule == rule]
        found += "".join("R" if f.fatal else "W" for f in findings) or "-"
    assert found == said


def test_a_release_is_refused_for_the_card_that_it_answers_wrongly() -> None:
    """Keys lost on gfx942 alone, past 2,048 tokens, whatever is drafted; the release that is right
    is named, and preflight has the rule's words."""
    refused = rules.known_faults(replace(intent("0.32.0", name="mi300x"), speculative=None))
    assert refused is not None and refused.fatal
    assert refused.message.startswith("vLLM 0.32.0: indexer-negative-zero: ")
    assert refused.message.endswith(
        "(max-model-len is 524288, right to 2048); use vLLM 0.27.0 or 0.27.1 with the series"
    )
    told = rule_finding(refused, "why")
    assert (told.check, told.level) == ("plan.vllm.faults", "fail")
    assert told.remedy == "use vLLM 0.27.0 or 0.27.1 with the series"
    assert rules.known_faults(intent("0.32.0", "--max-model-len=2k", name="mi300x")) is None
    assert rules.known_faults(intent("0.32.0")) is None


def test_the_v2_runner_is_asked_for_where_rocm_takes_the_other() -> None:
    """Set, it is enough; a server without a draft, and one on a CPU, may take either."""
    assert rules.v2_runner(intent("0.29.0", VLLM_USE_V2_MODEL_RUNNER="1")) is None
    refused = rules.v2_runner(intent("0.29.0", VLLM_USE_V2_MODEL_RUNNER="0"))
    assert refused is not None and refused.fatal
    assert rules.v2_runner(replace(intent("0.29.0"), speculative=None)) is None
    assert rules.v2_runner(replace(intent("0.29.0"), is_rehearsal=True)) is None


def test_graphs_are_by_default_none_on_one_card_of_one_release() -> None:
    """gfx942 keeps vLLM's own default where gfx950 has none."""
    assert intent("0.30.0", "-cc", "{}").graph_mode == "NONE"
    assert intent("0.30.0", "-cc", "{}", name="mi300x").graph_mode == rules.DEFAULT_GRAPHS


def test_draft_logits_are_half_as_large_once_they_have_the_models_type() -> None:
    """float32 at first."""
    card = RECIPE.profile("mi355x").gpu
    assert card is not None
    sizes = [
        next(part.size for part in memory.of(intent(v), card).parts if part.name == "draft logits")
        for v in ("0.27.1", "0.28.0")
    ]
    assert sizes[0] == 2 * (sizes[1] or 0) == 512 * 5 * 129_280 * 4


@pytest.mark.parametrize(
    ("version", "width", "level"),
    [("0.27.1", 3072, "warn"), ("0.28.0", 3072, "unknown"), ("0.28.0", 2048, "ok"), ("0.32.0", 3104, "warn")],
)  # fmt: skip
def test_a_shard_is_padded_as_the_release_pads_it(version: str, width: int, level: str) -> None:
    """To 256 by every backend at first, later to 128 by some; 3,072 over eight ranks is 384."""
    asked = intent(version, "--tensor-parallel-size", "8")
    asked = replace(asked, model=replace(asked.model, moe_intermediate_size=width))
    start = Start(RECIPE.profile("mi355x"), {}, asked, None, Unknown("not looked at"), (), ())
    (found,) = mxfp4_shard(start)
    assert found.level == level
    assert found.why.startswith(f"vLLM {version} pads ") or level == "ok"
