"""The vocabulary against the parser it was read from."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from deploy import environment, recipe
from deploy.recipe import release, vocabulary

ROOT = Path(__file__).resolve().parents[2]
VLLM = recipe.load().vllm
ASK = "import json; from deploy.recipe import vocabulary; print(json.dumps(vocabulary.from_vllm()))"


def fresh(python: str) -> dict[str, Any]:
    """What the vLLM of an interpreter says of itself."""
    env = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CONFIGURE_LOGGING": "0"}
    ended = subprocess.run(
        [python, "-c", ASK],
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


def test_a_size_is_a_number_and_nothing_else() -> None:
    """What a recipe may hold; test_arguments.py holds the spellings against vLLM's own reader."""
    assert [vocabulary.size(v) for v in (8192, -1, True, None, 2.5)] == [8192, *[None] * 4]
