"""A prompt is answered the same to the last bit each time it is asked, with patch 0009 only.

It is asked together with another, which is given its first page while half of the prompt is
computed. The cache has few pages, so the second time they are used again, and without 0009 to clear
that page takes the next: states of the prompt, of which a compressed row is about to be made. Run
by `make prove`.
"""

import os
from pathlib import Path

import pytest

from deploy.environment import cache_dir
from deploy.rehearsal.deepseek_v4 import publish_checkpoint
from deploy.rehearsal.environment import DEFAULT_ARCH
from tests.support.amd_server import AmdServer
from tests.support.figures import show
from tests.support.needle import Haystack

pytestmark = [pytest.mark.real, pytest.mark.prove, pytest.mark.timeout(3600)]

CLEARS_ONE = "0009-kv-page-cleared-from-its-start.patch"
PROMPT, OTHER = Haystack(35).tokens[:130], Haystack(10).tokens  # past a row of 128
TIMES = 3
FLAGS = (
    *("--max-num-seqs", "2", "--max-num-batched-tokens", "96"),
    *("--num-gpu-blocks-override", "115", "--no-enable-prefix-caching"),
)


def test_a_prompt_is_answered_the_same_each_time_with_patch_0009_only(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The log probabilities of the first word, of a server that was asked nothing else."""
    off = {}
    for name, without in (("with", ""), ("without", CLEARS_ONE)):
        first, *later = answers(tmp_path / name, without)
        off[name] = [
            max(abs(at - told.get(word, 0.0)) for word, at in first.items()) for told in later
        ]
        show(request, [f"{name} 0009: later answers are off by {off[name]}"])
    assert not any(off["with"])
    assert any(off["without"])


def answers(folder: Path, without: str) -> list[dict[str, float]]:
    """The log probabilities of the likeliest words after the prompt, each time."""
    home = publish_checkpoint(cache_dir(os.environ) / "models")
    server = AmdServer(
        folder, home, arch=DEFAULT_ARCH, without=without, speculation=False, flags=FLAGS
    )
    with server:
        return [ask(server) for _ in range(TIMES)]


def ask(server: AmdServer) -> dict[str, float]:
    """Both prompts in one request."""
    got = server.complete(
        prompt=[PROMPT, OTHER], max_tokens=1, temperature=0.0, logprobs=5, timeout=1200
    )
    assert got.status_code == 200, f"{got.text}\n{server.log_end()}"
    told: dict[str, float] = got.json()["choices"][0]["logprobs"]["top_logprobs"][0]
    return told
