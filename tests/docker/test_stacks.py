"""docker/stacks.py: py-spy gets into the image as the lock knows it, or not at all."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def unpack(folder: Path) -> subprocess.CompletedProcess[str]:
    """The step of the build."""
    command = [sys.executable, str(ROOT / "docker" / "stacks.py"), "wheels", "lock", "home"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A wheel, the lock that knows it, and a home for it."""
    for name in ("wheels", "home"):
        (tmp_path / name).mkdir()
    wheel = tmp_path / "wheels" / "py_spy-1.0-py2.py3-none-manylinux1_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("py_spy-1.0.data/scripts/py-spy", "#!/bin/sh\necho py-spy 1.0\n")
        archive.writestr("py_spy-1.0.dist-info/METADATA", "Name: py-spy\nVersion: 1.0\n")
        archive.writestr("../outside", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (tmp_path / "lock").write_text(f"py-spy==1.0 --hash=sha256:{digest}\n")
    return tmp_path


def test_the_program_and_its_metadata_are_put_in_place(folder: Path) -> None:
    """It runs, the bill of materials finds it, and nothing else of the wheel is written."""
    assert unpack(folder).returncode == 0
    program = folder / "home" / "bin" / "py-spy"
    assert subprocess.run([program], capture_output=True, text=True).stdout == "py-spy 1.0\n"
    assert (folder / "home" / "py_spy-1.0.dist-info" / "METADATA").exists()
    assert len([path for path in folder.rglob("*") if path.is_file()]) == 4


def test_a_wheel_that_the_lock_does_not_know_is_refused(folder: Path) -> None:
    """One line with both names; nothing is written."""
    (folder / "lock").write_text("py-spy==1.0 --hash=sha256:" + "0" * 64)
    done = unpack(folder)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert list((folder / "home").iterdir()) == []


def test_without_a_wheel_the_build_says_so(folder: Path) -> None:
    """The image is made without it."""
    next((folder / "wheels").iterdir()).unlink()
    done = unpack(folder)
    assert (done.returncode, list((folder / "home").iterdir())) == (0, [])
    assert "flights will have no stacks" in done.stdout
