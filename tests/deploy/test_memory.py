"""What a plan asks of a card's memory: each part by its formula, their sum against the card."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from deploy import plan, recipe
from deploy.plan.memory import GIB, Memory
from deploy.preflight import cli
from deploy.preflight.findings import Finding
from tests.support import recorded_hosts
from tests.support.recorded_hosts import RecordedHost

LOADED = recipe.load()
AMD = [p.name for p in LOADED.profiles.values() if p.gpu]


def asked(name: str, *flags: str, speculation: bool = True, **environ: str) -> Memory:
    """The memory of a profile with a user's flags."""
    made = plan.make(LOADED.profile(name), flags, environ, speculation)
    assert made.memory is not None
    return made.memory


def size(memory: Memory, name: str) -> int | None:
    """The bytes of a part."""
    (part,) = (p for p in memory.parts if p.name == name)
    return part.size


def test_the_draft_logits_of_unset_sequences_are_those_that_were_reported() -> None:
    """1,024 sequences x 5 x 129,280 words in float32: the 2.65 GB of vLLM PR 50910."""
    draft = size(asked("mi355x", "--max-num-seqs", "1024"), "draft logits")
    assert draft == 2_647_654_400


def test_the_indexer_of_the_models_whole_length_takes_8_gib() -> None:
    """8,192 rows of a quarter of 1,048,576 positions, 4 bytes each."""
    whole = asked("mi355x", "--max-model-len", "1M")
    assert size(whole, "indexer logits") == 8 * GIB
    serve = {k: v for k, v in LOADED.profile("mi355x").serve.items() if k != "max-model-len"}
    unset = plan.make(replace(LOADED.profile("mi355x"), serve=serve))
    assert unset.memory == whole


def test_a_given_cache_is_a_part_and_the_card_the_budget() -> None:
    """One MI300X: weights, cache, two workspaces and the draft's logits; the rest is left."""
    memory = asked("mi300x")
    sizes = {part.name: part.size for part in memory.parts}
    assert sizes == {
        "weights": 166_900_000_000,
        "indexer logits": 2048 * 131_072 * 4,
        "prefill logits": 512 << 20,
        "draft logits": 16 * 5 * 129_280 * 4,
        "graphs": 0,
        "KV cache": 16_000_000_000,
    }
    assert memory.budget == memory.card == 192 * GIB
    assert memory.left == 192 * GIB - sum(sizes.values())


def test_without_one_the_cache_gets_what_the_share_leaves() -> None:
    """Eight MI300X: an eighth of the weights, and 0.85 of the card for all parts together."""
    memory = asked("mi300x-8")
    assert size(memory, "weights") == 166_900_000_000 // 8
    assert memory.budget == int(192 * GIB * 0.85)
    assert memory.left == memory.budget - memory.taken
    assert memory.lines()[-1].split()[:3] == ["KV", "cache", f"{memory.left / 1e9:.1f}"]
    assert asked("mi300x-8", "--enable-expert-parallel") == memory


@pytest.mark.parametrize(
    ("spelt", "plain"),
    [
        (["--max-num-batched-tokens", "16k"], ["--max-num-batched-tokens", "16000"]),
        (["--max-model-len", "64K"], ["--max-model-len", "65536"]),
        (["--kv-cache-memory-bytes", "10g"], ["--kv-cache-memory-bytes", "10000000000"]),
    ],
)
def test_a_size_is_the_same_in_every_spelling(spelt: list[str], plain: list[str]) -> None:
    """vLLM's short forms count as the numbers they stand for."""
    assert asked("mi355x", *spelt) == asked("mi355x", *plain) != asked("mi355x")


def test_what_is_not_there_takes_nothing_and_what_is_not_known_is_told() -> None:
    """No draft, or a greedy one, has no logits; graphs and an automatic length are unknown."""
    greedy = '{"method":"dspark","num_speculative_tokens":5}'
    assert size(asked("mi355x", speculation=False), "draft logits") == 0
    assert size(asked("mi355x", "--speculative-config", greedy), "draft logits") == 0
    graphs = asked("mi355x", "--compilation-config", '{"cudagraph_mode":"FULL"}')
    assert graphs.unknown == ("graphs",)
    assert asked("mi355x", "--max-model-len", "auto").unknown == ("indexer logits",)
    assert any(line.split()[:2] == ["graphs", "?"] for line in graphs.lines())


def found(root: Path, name: str, *flags: str, **environ: str) -> Finding:
    """What preflight says of the plan's memory, on the host of a profile."""
    tree = recorded_hosts.gpu_host(root, "mi300x")
    tree.note("environ", **environ)
    report = cli.inspect(RecordedHost(tree.done()), LOADED, LOADED.profile(name), flags)
    assert report.memory is not None
    (finding,) = (f for f in report.findings if f.check == "plan.memory")
    return finding


@pytest.mark.parametrize("name", AMD)
def test_every_profile_fits_its_card(tmp_path: Path, name: str) -> None:
    """With room left for what is not counted."""
    assert found(tmp_path, name).level == "ok"


@pytest.mark.parametrize(
    ("name", "flags", "level", "said"),
    [
        ("mi300x", ("--kv-cache-memory-bytes", "28g"), "warn", "9.6 of 206.2 GB a card are left: it is tight"),
        ("mi300x", ("--kv-cache-memory-bytes", "40G"), "fail", "it does not fit"),
        ("mi300x-8", ("-tp", "1", "--gpu-memory-utilization", "0.8"), "fail", "are left for the KV cache: it does not fit"),
        ("mi300x-8", ("--gpu-memory-utilization", "0.15"), "warn", "it is tight"),
        ("mi300x-8", ("--max-num-seqs", "1999", "--max-num-batched-tokens", "512k"), "fail", "it does not fit"),
        ("mi300x-8", ("--max-model-len", "auto"), "unknown", "without indexer logits"),
        ("mi300x", ("--compilation-config", "{}"), "ok", "21.6 of 206.2 GB a card are left"),
    ],
)  # fmt: skip
def test_what_cannot_fit_fails_and_what_is_tight_is_told(
    tmp_path: Path, name: str, flags: tuple[str, ...], level: str, said: str
) -> None:
    """Against the card, or the share of it; an unknown length is no verdict, graphs alone are."""
    finding = found(tmp_path, name, *flags)
    assert finding.level == level, finding
    assert said in finding.seen


def test_plan_and_preflight_show_the_same_table(tmp_path: Path) -> None:
    """One table, after the findings and beside the plan; programs get the numbers."""
    host = RecordedHost(recorded_hosts.gpu_host(tmp_path, "mi300x").done())
    report = cli.inspect(host, LOADED, LOADED.profile("mi300x"))
    lines = asked("mi300x").lines()
    text = cli.render(report, "text").splitlines()
    assert text[-1 - len(lines) : -1] == lines
    parts = json.loads(cli.render(report, "json"))["memory"]["parts"]
    assert [p["size"] for p in parts] == [p.size for p in asked("mi300x").parts]
