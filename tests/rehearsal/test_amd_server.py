"""The AMD classes in the real server: what the series is for, over HTTP."""

import itertools
import math
import re
from collections.abc import Iterator

import pytest
import requests

from deploy import recipe
from deploy.rehearsal.environment import AMD
from healthcheck.client import exposition
from healthcheck.client.chat import chat
from healthcheck.judge import Outcome, acceptance
from healthcheck.smoke import tools
from tests.support.rehearsal_server import RehearsalServer

pytestmark = pytest.mark.real

# Past what the indexer keeps (index_topk 16 rows of 4 tokens), the window of 32, and a C128 row.
PROMPT = " ".join(itertools.islice(itertools.cycle(["good", "water", "is", "near", "the"]), 140))
TOKENS = 64
# What the tiny draft's acceptance may be: FACTS of the checkpoint, not of production.
FLOOR, CEILING = 0.25, 0.85


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RehearsalServer]:
    """One server, on the card whose FP8 is not OCP's."""
    log = tmp_path_factory.mktemp("amd") / "log"
    with RehearsalServer(log, profile=AMD, arch="gfx942") as running:
        yield running


def test_sampled_text_comes_through_the_amd_draft(server: RehearsalServer) -> None:
    """A long sampled answer is words with finite log probabilities; five drafts a step were made
    for it, and as many accepted as the checkpoint is made for, by the health service's judges."""
    before = speculation(server)
    answer = server.complete(prompt=PROMPT, max_tokens=TOKENS, logprobs=1, timeout=900)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    assert re.fullmatch(r"( [a-z]+|<\|im_end\|>)+", choice["text"])
    chosen = choice["logprobs"]["token_logprobs"]
    assert all(map(math.isfinite, chosen)) and len(set(chosen)) > TOKENS // 2
    counted = speculation(server).since(before)
    seen = acceptance.Acceptance.of(counted)
    assert seen is not None
    assert seen.drafted_per_step == 5
    assert FLOOR < seen.rate < CEILING
    health = recipe.load().profile(AMD).health
    assert seen.intervals[0][0] > health.acceptance_floor
    assert acceptance.low(counted, health.acceptance_floor) is Outcome.GOOD
    assert acceptance.collapsed(counted) is not Outcome.BAD


def test_the_context_has_room_for_a_tool_and_its_call(server: RehearsalServer) -> None:
    """DeepSeek V4's own template tells much of a tool, and the tiny vocabulary spells most of it."""
    question = f"{tools.QUESTION} {'0' * 16}"
    asked = {**chat("rehearsal", question, tools.TOKENS, seed=9), "tools": [tools.TOOL]}
    seen = requests.post(f"{server.url}/tokenize", json=asked, timeout=60).json()
    assert seen["count"] > 900  # without the tool less than 100
    assert seen["count"] + tools.TOKENS <= seen["max_model_len"]


def speculation(server: RehearsalServer) -> exposition.Speculation:
    """The counters of drafts, as the health service reads them."""
    seen = exposition.parse(requests.get(f"{server.url}/metrics", timeout=60).content)
    assert isinstance(seen, exposition.Exposition)
    return seen.speculation() or exposition.Speculation()
