"""The vocabulary against the parser it was read from."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import recipe, vocabulary

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.real
def test_the_vocabulary_is_what_the_pinned_vllm_says() -> None:
    """deploy/vocabulary.json equals a fresh answer of vLLM's own argument parser."""
    env = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CONFIGURE_LOGGING": "0"}
    ended = subprocess.run(
        [sys.executable, "-m", "deploy", "vocabulary"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    fresh = json.loads(ended.stdout[ended.stdout.index("{") :])
    assert fresh == json.loads(vocabulary.FILE.read_text("utf-8"))


def test_every_short_form_finds_its_long_name() -> None:
    """resolve() knows long, negated and short spellings, and nothing else."""
    words = vocabulary.load()
    assert words.resolve("-tp") == "tensor-parallel-size"
    assert words.resolve("--no-enforce-eager") == "enforce-eager"
    assert words.resolve("--max_num_seqs") == "max-num-seqs"
    assert words.resolve("--nonsense") is None


def test_the_vocabulary_is_of_the_pinned_release() -> None:
    """Recipe and vocabulary speak of one vLLM."""
    assert vocabulary.load().vllm_version == recipe.load().vllm.version
