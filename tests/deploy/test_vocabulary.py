"""The vocabulary against the parser it was read from."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import recipe, vocabulary

ROOT = Path(__file__).resolve().parents[2]
VLLM = recipe.load().vllm


@pytest.mark.real
def test_the_vocabulary_is_what_the_pinned_vllm_says() -> None:
    """The release's vocabulary.json equals a fresh answer of vLLM's own argument parser."""
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
    assert fresh == json.loads((VLLM.folder / vocabulary.NAME).read_text("utf-8"))


def test_every_way_to_write_an_option_finds_its_long_name() -> None:
    """Long, negated and short spellings, and nothing else."""
    spellings = VLLM.vocabulary.spellings
    assert spellings["-tp"] == ("tensor-parallel-size", False)
    assert spellings["--no-enforce-eager"] == ("enforce-eager", True)
    assert "--no-headless" not in spellings
    assert "--nonsense" not in spellings


SIZES = ("0", "4096", "16k", "16K", "25.6k", "2M", "2m", "1G", "1g", "1.5T", "-1", "auto", "x", "")


def test_a_size_is_a_number_in_every_spelling() -> None:
    """As vLLM's own reader has them: small letters count by 1,000, capitals by 1,024."""
    read = [vocabulary.size(text) for text in SIZES]
    numbers = [0, 4096, 16_000, 16_384, 25_600, 2 << 20, 2_000_000, 1 << 30, 10**9]
    assert read == [*numbers, None, None, None, None, None]
    assert [vocabulary.size(v) for v in (8192, -1, True, None, 2.5)] == [8192, *[None] * 4]


# Asks both in one process, because importing vLLM takes longer than answering.
ASK = """
import json, sys
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import human_readable_int_or_auto as read
def size(text):
    try:
        return read(text)
    except Exception:
        return -1
given = json.load(sys.stdin)
args = EngineArgs(model="x", reasoning_parser=given["parser"])
args._set_default_reasoning_config_args()
reasoning = {k: v for k, v in vars(args.reasoning_config).items() if not k.startswith("_")}
print("READ" + json.dumps({"sizes": [size(t) for t in given["sizes"]], "reasoning": reasoning}))
"""


@pytest.mark.real
def test_the_pinned_vllm_reads_what_we_say_it_reads() -> None:
    """Each spelling of a size, none where it refuses or chooses itself; and the reasoning-config of
    vLLM's recipes, which it makes of the recipe's reasoning-parser by itself."""
    parser = recipe.load().profile("mi355x").serve["reasoning-parser"]
    ended = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps({"sizes": SIZES, "parser": parser}),
        env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    theirs = json.loads(ended.stdout.rpartition("READ")[2])
    ours = [vocabulary.size(text) for text in SIZES]
    assert theirs["sizes"] == [-1 if size is None else size for size in ours]
    assert theirs["reasoning"] == {
        "reasoning_parser": parser,
        "reasoning_start_str": "",
        "reasoning_end_str": "",
    }
