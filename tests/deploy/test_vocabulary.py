"""The vocabulary against the parser it was read from."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy import environment, recipe, release, vocabulary

ROOT = Path(__file__).resolve().parents[2]
VLLM = recipe.load().vllm


def fresh(python: str) -> dict[str, Any]:
    """What the vLLM of an interpreter says of itself."""
    env = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CONFIGURE_LOGGING": "0"}
    ended = subprocess.run(
        [python, "-m", "deploy", "vocabulary"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return json.loads(ended.stdout[ended.stdout.index("{") :])  # type: ignore[no-any-return]


@pytest.mark.real
@pytest.mark.parametrize("version", release.names())
def test_the_vocabulary_is_what_vllm_says(version: str) -> None:
    """Each release's file, laid over its base's, equals a fresh answer of vLLM's own parser."""
    vllm = release.load(version)
    if vllm.rehearsal is None:
        pytest.skip("no vLLM for the CPU")
    files = [folder / vocabulary.NAME for folder in vllm.folders]
    assert fresh(str(environment.ensure("rehearsal", vllm))) == vocabulary.content(*files)


def test_a_difference_laid_over_its_base_gives_the_whole() -> None:
    """What is gone, what is new and what is other, in tables and in lists of names."""
    base = {
        "flags": {"a": {"kind": "int"}, "b": {"kind": "bool", "bare": True}},
        "environment": ["X", "Y"],
    }
    whole = {"flags": {"b": {"kind": "bool"}, "c": {"kind": "int"}}, "environment": ["X", "Z"]}
    found = vocabulary.difference(whole, base)
    assert found == {
        "environment": {"Y": None, "Z": True},
        "flags": {"a": None, "b": {"bare": None}, "c": {"kind": "int"}},
    }
    assert vocabulary.difference(base, base) == {}


@pytest.mark.parametrize("version", release.names())
def test_a_difference_repeats_nothing_of_its_base(version: str) -> None:
    """Written again from the whole it is the same file."""
    *base, own = (folder / vocabulary.NAME for folder in release.load(version).folders)
    if base:
        whole = vocabulary.content(*base, own)
        assert vocabulary.difference(whole, vocabulary.content(*base)) == json.loads(
            own.read_text()
        )


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
