"""The stand-in image where it cannot be made; that it is made, the container tests show."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.rehearsal import image

ROOT = Path(__file__).resolve().parents[2]

# An engine that answers and has no image and no registry.
_DOCKER = """#!/bin/sh
case "$1" in
    ps) exit 0 ;;
    import) cat > /dev/null; exit 0 ;;
    *) exit 1 ;;
esac
"""
# mmdebstrap hangs up on its process group when a package fails.
_MMDEBSTRAP = """#!/bin/sh
echo 'E: no such suite' >&2
kill -HUP 0
exit 1
"""


def test_a_root_that_fails_is_told_and_takes_nobody_with_it(tmp_path: Path) -> None:
    """The tool's own words, then one line; the process group of the caller lives on."""
    for name, text in (("docker", _DOCKER), ("mmdebstrap", _MMDEBSTRAP)):
        program = tmp_path / name
        program.write_text(text)
        program.chmod(0o755)
    script = (
        "from deploy.rehearsal import image\n"
        "try:\n    image.ensure_root()\n"
        "except image.RehearsalError as e:\n    print(e)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("mmdebstrap: ended with ")
    assert "E: no such suite" in ended.stderr


def test_a_release_of_two_environments_has_no_image(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, before an engine is asked for anything."""
    monkeypatch.setenv("RELEASE", "0.32.0")
    assert image.main() == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(
        "rehearsal: RELEASE: got 0.32.0, whose environment is laid over that"
    )
