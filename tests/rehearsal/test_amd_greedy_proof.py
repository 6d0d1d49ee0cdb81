"""Greedy text of the real engine is the same with and without the draft, on both FP8 formats.

A step that verifies drafts asks for six tokens at once, and writes keys and compressed rows of
drafts that it then rejects: what is left of them would show in a later token. The model is the
needles' (tests/support/needle.py): each of its tokens depends on a row that only the indexer finds,
and is likelier than the next by far more than rounding. What its other layers find adds nothing to
a token, so a fault of theirs is not seen here. Run by `make prove`.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from deploy.rehearsal import deepseek_v4
from patches.loadcheck.card import CARDS
from tests.support.amd_server import AmdServer
from tests.support.figures import show
from tests.support.needle import ROW, TOP_K, Haystack, write

pytestmark = [pytest.mark.real, pytest.mark.prove, pytest.mark.timeout(3 * 3600)]

PAGE = 256
WINDOW: int = deepseek_v4.config()["sliding_window"]
# A page to be hit, and behind it one of the draft's window, which is always computed anew.
LARGE = Haystack((PAGE + 64) // ROW + 4)
# Its prompt is within both the window and the rows that are picked; its answer leaves the window.
SMALL = Haystack(7)
ASKS, TOKENS = 5, 12
# 137 tokens of a prompt a step, after 4 for the drafts of each request; 137 ends no row.
BATCH = 137 + 4 * ASKS
FLAGS = ("--max-num-seqs", str(ASKS), "--max-num-batched-tokens", str(BATCH))
# By how much the log probability of a token is above the next one's: no rounding is near it.
DECIDED = 1.0


@dataclass(frozen=True)
class Answer:
    """Token ids, and by how much each was likelier than the next likeliest."""

    tokens: list[int]
    margins: list[float]


@pytest.mark.parametrize("arch", CARDS)
def test_greedy_text_is_the_same_with_and_without_the_draft(
    arch: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Out of the window and past index_topk rows, in chunks of a prompt and after prefix hits, with
    drafts accepted and rejected: the tokens are the same, and those that the prompt asks for."""
    assert ROW * SMALL.rows < WINDOW < ROW * SMALL.rows + TOKENS
    assert LARGE.rows > 4 * TOP_K
    home = write(tmp_path / "home", learnt=LARGE.links)
    plain = answers(AmdServer(tmp_path / "plain", home, arch=arch, speculation=False, flags=FLAGS))
    drafted = answers(AmdServer(tmp_path / "drafted", home, arch=arch, flags=FLAGS))
    margin = min(min(answer.margins) for said in (plain, drafted) for answer in said.values())
    count = sum(len(answer.tokens) for answer in plain.values())
    show(request, [f"{arch} greedy: {count} tokens, the least likely by {margin:.1f}"])
    for (haystack, key), answer in plain.items():
        assert answer.tokens == drafted[haystack, key].tokens, key
        assert answer.tokens == haystack.follow(key, TOKENS), key
    assert margin > DECIDED


def answers(server: AmdServer) -> dict[tuple[Haystack, int], Answer]:
    """The answers by haystack and key; the first is asked alone, and fills the page of the rest."""
    keys = LARGE.cycle[:: LARGE.rows // ASKS][:ASKS]
    (first, *others) = [*((LARGE, key) for key in keys), (SMALL, SMALL.cycle[0])]
    with server, ThreadPoolExecutor() as pool:
        said = {first: ask(server, *first)}
        said |= dict(zip(others, pool.map(lambda other: ask(server, *other), others), strict=True))
        check_path(server)
    return said


def ask(server: AmdServer, haystack: Haystack, key: int) -> Answer:
    """A greedy answer."""
    got = server.complete(
        prompt=haystack.asks(key),
        max_tokens=TOKENS,
        temperature=0.0,
        logprobs=2,
        return_token_ids=True,
        timeout=3600,
    )
    assert got.status_code == 200, f"{got.text}\n{server.log_end()}"
    choice = got.json()["choices"][0]
    return Answer(choice["token_ids"], [*map(margin_of, choice["logprobs"]["top_logprobs"])])


def margin_of(told: Mapping[str, float]) -> float:
    """How much likelier the likeliest token is than the next."""
    best, second, *_ = sorted(told.values(), reverse=True)
    return best - second


def check_path(server: AmdServer) -> None:
    """Prompts were cut, pages were hit, and drafts were accepted and rejected, if there were any."""
    assert f"Chunked prefill is enabled with max_num_batched_tokens={BATCH}." in server.log_text()
    page = requests.get(f"{server.url}/metrics", timeout=60).text
    (hits,) = [line for line in page.splitlines() if line.startswith("vllm:prefix_cache_hits_t")]
    assert float(hits.split()[-1]) == (ASKS - 1) * PAGE, hits
    if counted := server.counters():
        drafted, accepted = counted["draft_tokens_total"], counted["accepted_tokens_total"]
        assert drafted / 20 < accepted < drafted * 0.9, counted
