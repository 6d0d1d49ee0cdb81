"""The README against what it speaks of."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import recipe

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not {".git", "build", "node_modules"} & set(path.relative_to(ROOT).parts)
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files(document: Path) -> None:
    """Every relative link of every document is a file of the checkout."""
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text("utf-8")):
        assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_every_make_target_of_the_documents_exists() -> None:
    """A command that is told can be run."""
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = {line.split()[0] for line in listed.splitlines()}
    for document in DOCUMENTS:
        told = set(re.findall(r"(?:^|`)make ([a-z-]+)", document.read_text("utf-8"), re.MULTILINE))
        assert told <= targets, document


def test_the_hardware_table_is_the_recipes() -> None:
    """Each profile has its row; an unverified one says so."""
    readme = (ROOT / "README.md").read_text("utf-8")
    for profile in recipe.load().profiles.values():
        row = re.search(rf"^\| `{profile.name}` \|.*$", readme, re.MULTILINE)
        assert row is not None, profile.name
        if profile.gpu is not None:
            assert (
                f"{profile.gpu.count} x {profile.gpu.name.removeprefix('AMD Instinct ')}" in row[0]
            )
            assert profile.gpu.arch in row[0]
            assert ("unverified" in row[0]) == (profile.evidence == recipe.UNVERIFIED)


@pytest.mark.parametrize(
    "module", ["deploy", "deploy.host", "deploy.rehearsal", "patches", "healthcheck"]
)
def test_every_command_has_help(module: str) -> None:
    """`python -m NAME --help` works in a bare interpreter's standard library, or the small lock."""
    ended = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0
    assert "usage:" in ended.stdout
