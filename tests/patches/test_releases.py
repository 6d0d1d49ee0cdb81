"""The table of releases in patches/README.md, against the real trees."""

import re
from pathlib import Path

import pytest

from patches import series
from patches.apply import PatchStatus, RefusedError, apply, status
from tests.support.vllm_trees import SHA256, slim_copy

LOADED = series.load()
NUMBERS = [patch.name[:4] for patch in LOADED.patches]
TARGETS = [target.path for patch in LOADED.patches for target in patch.targets]
WORDS = {"pending": "fits", "upstream": "upstream", "drifted": "no", "missing": "no"}


def rows() -> list[list[str]]:
    """The cells of the table's rows, header first."""
    text = (series.FOLDER / "README.md").read_text(encoding="utf-8")
    table = re.search(r"^\| vLLM \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None
    lines = [table[0].splitlines()[0], *table[1].splitlines()]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def releases() -> list[tuple[str, list[str], str]]:
    """Each release of the table with the word of each patch and what is said of the series."""
    return [
        (release, row[1:-1], row[-1])
        for row in rows()[1:]
        for release in re.findall(r"\d+\.\d+\.\d+", row[0])
    ]


def found_by(root: Path, number: str) -> list[PatchStatus]:
    """What the files of one patch are found to be."""
    return [found for found in status(root, LOADED) if found.patch.startswith(number)]


def test_every_release_and_every_patch_is_told() -> None:
    """The table has a column a patch, and a row for each release that has the AMD class."""
    assert rows()[0] == ["vLLM", *NUMBERS, "the series"]
    told = [release for release, _, _ in releases()]
    assert told == [version for version in SHA256 if version >= "0.26.0"]


@pytest.mark.parametrize(("version", "words", "verdict"), releases())
def test_the_table_is_true(version: str, words: list[str], verdict: str, tmp_path: Path) -> None:
    """A patch fits, is upstream or does neither as told, and the series ends as told."""
    root = slim_copy(version, tmp_path, TARGETS)
    for number, word in zip(NUMBERS, words, strict=True):
        told = {WORDS[found.state] for found in found_by(root, number)}
        assert ("no" if "no" in told else told.pop()) == word, (version, number)
    if verdict.startswith("refused"):
        with pytest.raises(RefusedError):
            apply(root, LOADED)
        return
    changed = apply(root, LOADED).changed
    assert bool(changed) == verdict.startswith("applies")
    assert bool(changed) != verdict.startswith("nothing to do")
