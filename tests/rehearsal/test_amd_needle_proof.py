"""Needles past what the indexer keeps, found by the real engine with patch 0004 only.

The model is constructed (tests/support/needle.py): it knows no answer but by looking where its
indexer points. Run by `make prove`.
"""

from pathlib import Path

import pytest

from patches.loadcheck.card import CARDS
from tests.support.amd_server import READS_FLAT, AmdServer
from tests.support.figures import show
from tests.support.needle import TOP_K, Haystack, write

pytestmark = [pytest.mark.real, pytest.mark.prove, pytest.mark.timeout(3 * 3600)]

# 768 tokens are three pages of the cache; the small one and its answer stay below TOP_K rows.
LARGE, SMALL = Haystack(192), Haystack(10)
ASKS, TOKENS = 4, 12
CHANCE = TOP_K / LARGE.rows


@pytest.mark.parametrize("arch", CARDS)
def test_needles_past_index_topk_are_found_with_patch_0004_only(
    arch: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Below index_topk rows every needle is found; past it all of them with the series, in a whole
    prefill, after prefix hits, in decodes and with drafts accepted, and by chance without 0004."""
    home = write(tmp_path / "home", learnt=LARGE.links)
    with_it = look(AmdServer(tmp_path / "with", home, arch=arch))
    without = look(AmdServer(tmp_path / "without", home, arch=arch, without=READS_FLAT))
    for name, (within, past, accepted) in (("with", with_it), ("without", without)):
        told = f"{count(within)} within index_topk, {count(past)} past it (chance {CHANCE:.0%})"
        show(request, [f"{arch} {name} 0004: needles found {told}, {accepted:.0f} drafts accepted"])
    for within, _, _ in (with_it, without):
        assert len(within) == SMALL.rows - 1 and all(within.values())
    _, past, accepted = with_it
    assert len(past) == ASKS * TOKENS and all(past.values())
    assert accepted > ASKS * TOKENS / 3
    _, past, _ = without
    assert len(past) > ASKS * TOKENS / 4
    assert sum(past.values()) / len(past) < 3 * CHANCE


def look(server: AmdServer) -> tuple[dict[int, bool], dict[int, bool], float]:
    """The keys asked for within index_topk rows and past them, and the drafts accepted."""
    with server:
        within = answered(server, SMALL, SMALL.cycle[0], SMALL.rows - 1)
        past: dict[int, bool] = {}
        for key in LARGE.cycle[:: LARGE.rows // ASKS]:
            past |= answered(server, LARGE, key, TOKENS)
        return within, past, server.counters()["accepted_tokens_total"]


def answered(server: AmdServer, haystack: Haystack, key: int, tokens: int) -> dict[int, bool]:
    """Which keys of a greedy answer were followed by their values."""
    answer = server.complete(
        prompt=haystack.asks(key), max_tokens=tokens, temperature=0.0, timeout=3600
    )
    assert answer.status_code == 200, f"{answer.text}\n{server.log_end()}"
    return haystack.found(key, answer.json()["choices"][0]["text"])


def count(found: dict[int, bool]) -> str:
    """How many of how many."""
    return f"{sum(found.values())} of {len(found)}"
