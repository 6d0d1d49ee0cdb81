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


SIZES = ("0", "4096", "16k", "16K", "25.6k", "2M", "2m", "1G", "1g", "1.5T", "-1", "auto", "x", "")


def test_a_size_is_a_number_in_every_spelling() -> None:
    """As vLLM's own reader has them: small letters count by 1,000, capitals by 1,024."""
    read = [vocabulary.size(text) for text in SIZES]
    numbers = [0, 4096, 16_000, 16_384, 25_600, 2 << 20, 2_000_000, 1 << 30, 10**9]
    assert read == [*numbers, None, None, None, None, None]
    assert [vocabulary.size(v) for v in (8192, -1, True, None, 2.5)] == [8192, *[None] * 4]


@pytest.mark.real
def test_a_size_is_what_vllm_reads() -> None:
    """Each spelling against the pinned vLLM; what it refuses or calls automatic is none here."""
    ask = (
        "import json, sys\n"
        "from vllm.utils.argparse_utils import human_readable_int_or_auto as read\n"
        "def answer(text):\n"
        "    try:\n"
        "        return read(text)\n"
        "    except Exception:\n"
        "        return -1\n"
        "print('READ' + json.dumps([answer(text) for text in json.load(sys.stdin)]))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", ask],
        input=json.dumps(SIZES),
        env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    theirs = json.loads(ended.stdout.rpartition("READ")[2])
    ours = [vocabulary.size(text) for text in SIZES]
    assert theirs == [-1 if size is None else size for size in ours]
