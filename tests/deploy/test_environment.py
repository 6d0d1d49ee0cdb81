"""Locked environments: found again, refused in one line, never left half-made.

That they are made at all, every other test shows: it runs in one.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import environment
from deploy.environment import SetupError

ROOT = Path(__file__).resolve().parents[2]


def run(cache: Path | str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`python3 -m deploy environment health` with a cache folder of its own."""
    return subprocess.run(
        [sys.executable, "-m", "deploy", "environment", "health"],
        cwd=ROOT,
        env={**os.environ, "DSPARK_CACHE": str(cache), **environ},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_what_was_made_is_not_made_again(tmp_path: Path) -> None:
    """The interpreter's path is all of stdout, so that a shell can take it."""
    folder = tmp_path / "env" / environment.key("health", environment.lock("health"))
    folder.mkdir(parents=True)
    (folder / ".complete").touch()
    ended = run(tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"{folder}/bin/python\n"


def test_packages_that_cannot_be_had_leave_nothing(tmp_path: Path) -> None:
    """Without an index: exit 1, one line with pip's own reason, and no half-made environment."""
    ended = run(tmp_path, PIP_NO_INDEX="1", PIP_CONFIG_FILE=os.devnull)
    assert (ended.returncode, ended.stdout) == (1, "")
    told = [line for line in ended.stderr.splitlines() if not line.startswith("setup: ")]
    assert len(told) == 1, ended.stderr
    assert told[0].startswith("deploy: requirements.lock: pip ended with 1: ")
    assert "check pip's index and network" in told[0]
    assert [path.suffix for path in (tmp_path / "env").iterdir()] == [".lock"]


@pytest.mark.parametrize("name", ["file/cache", "x" * 300], ids=["below a file", "too long"])
def test_a_cache_that_cannot_be_made_is_refused(tmp_path: Path, name: str) -> None:
    """The folder, the system's reason, the setting: one line, exit 1."""
    (tmp_path / "file").touch()
    ended = run(tmp_path / name)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"deploy: cache {tmp_path}/{name}")
    assert ended.stderr.endswith("; set DSPARK_CACHE to a writable folder\n")
    assert len(ended.stderr.splitlines()) == 1


def test_a_lock_that_cannot_be_taken_is_refused(tmp_path: Path) -> None:
    """Something else in the lock's place: one line, exit 1."""
    lock = tmp_path / "env" / f"{environment.key('health', environment.lock('health'))}.lock"
    lock.mkdir(parents=True)
    ended = run(tmp_path)
    assert ended.returncode == 1
    assert ended.stderr == (
        f"deploy: cache {lock}: Is a directory; set DSPARK_CACHE to a writable folder\n"
    )


def test_the_home_of_nobody_is_no_cache() -> None:
    """`~no-such-user` is told and not made a folder of that name."""
    ended = run("~no-such-user/x")
    assert ended.returncode == 1
    assert ended.stderr == (
        "deploy: cache ~no-such-user/x: has no home folder; set DSPARK_CACHE to a path\n"
    )


def test_a_full_disk_is_told_before_anything_is_downloaded(tmp_path: Path) -> None:
    """What is free, what is needed, and where else to go."""
    with pytest.raises(SetupError, match=r"GB free; 1e\+09 GB are needed: free some or set DSPARK"):
        environment._require_disk(tmp_path, 1e9)


@pytest.mark.parametrize("works", [True, False])
def test_system_packages_are_installed_where_that_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    """As root apt-get is asked; where it fails, or may not be asked, the command is told."""
    calls, apt = tmp_path / "calls", tmp_path / "apt-get"
    apt.write_text(f'#!/bin/sh\necho "$*" >> {calls}\nexit {0 if works else 100}\n')
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(environment, "_loads", lambda _: False)
    lock = environment.lock("rehearsal")
    if works and os.geteuid() == 0:
        environment._require_system(lock)
    else:
        with pytest.raises(SetupError, match="libnuma1 missing; sudo apt-get install libnuma1"):
            environment._require_system(lock)
    if os.geteuid() == 0:
        asked = calls.read_text().splitlines()
        assert [line.split()[-1] for line in asked] == ["update", "libnuma1"]


def test_no_package_is_in_two_locks_of_an_environment() -> None:
    """They are installed side by side."""
    held = environment.lock("rehearsal")
    assert held.torch
    names = [held.torch.partition("==")[0]]
    for file in held.files:
        names += re.findall(r"^([\w.-]+)==", file.read_text("utf-8"), re.MULTILINE)
    assert len(names) > 100
    assert len(set(names)) == len(names)
