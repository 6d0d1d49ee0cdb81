"""The wheel, installed outside the checkout: what a user gets who does not clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from deploy import recipe
from deploy.recipe import release

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 300
LOG = ROOT / "tests/healthcheck/data/log-missing-d2t.log"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of a copy of the checkout, so that no build output lands in it."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.whl")
    for name in ("deploy", "healthcheck", "patches"):
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    # The build backend is the environment's own: nothing is fetched.
    pip += ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run(pip, check=True, timeout=DEADLINE_S)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel was installed to."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    pip += ["--no-deps", "--no-index", "--target", str(folder), str(wheel)]
    subprocess.run(pip, check=True, timeout=DEADLINE_S)
    return folder


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of the installed wheel, in a folder that has nothing of the project."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=installed.parent,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        (("deploy", "profiles"), 0, "mi355x"),
        (("deploy", "plan", "--profile", "mi355x"), 0, "--speculative-config"),
        (("patches", "show"), 0, "0001-rocm-dspark-draft-id-to-target-id.patch"),
        (("patches", "audit", "--help"), 0, "--baseline"),
        (("healthcheck", "serve", "--help"), 0, "--token-file"),
        (("healthcheck", "smoke", "--help"), 0, "--json"),
        (("healthcheck", "accuracy", "--help"), 0, "--seed"),
        (("healthcheck", "explain", str(LOG)), 1, "dspark.missing_d2t_attr"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else None,
)
def test_its_commands_run_outside_the_checkout(
    installed: Path, arguments: tuple[str, ...], code: int, shown: str
) -> None:
    """Data files travel with the modules that read them."""
    ran = run(installed, *arguments)
    assert ran.returncode == code, ran.stderr
    assert shown in ran.stdout


def test_it_has_every_module_and_data_file_of_the_product(wheel: Path) -> None:
    """All of the three packages but rehearsal and upstream, which never travel; no bytecode."""
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    assert not [
        n
        for n in names
        if n.startswith(("deploy/rehearsal", "deploy/upstream")) or "__pycache__" in n
    ]
    modules = {
        str(path.relative_to(ROOT))
        for package in ("deploy", "healthcheck", "patches")
        for path in (ROOT / package).rglob("*.py")
        if not {"rehearsal", "upstream"} & set(path.parts)
    }
    assert modules <= names
    data = {
        "deploy/recipe.toml",
        "deploy/releases/facts.toml",
        "healthcheck/explain/signatures.tsv",
    }
    data |= {
        f"deploy/releases/{version}/{name}"
        for version in release.names()
        for name in ("release.toml", "recipe.toml", "vocabulary.json")
        if (release.FOLDER / version / name).exists()
    }
    assert data | {"patches/series", "patches/faults.toml"} <= names


def test_its_version_is_the_changelogs() -> None:
    """The newest heading of the changelog is the version of the package."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    version = text.split('version = "')[1].split('"')[0]
    headings = [
        line
        for line in (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()
        if line[:3] == "## "
    ]
    assert headings[0].startswith(f"## {version}")
    assert recipe.load().vllm.version in (ROOT / "CHANGELOG.md").read_text("utf-8")
