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


# An engine that has the images of a build, and writes down what is asked of it.
_WITH_IMAGES = """#!/bin/sh
echo "$@" >> "$CALLS"
case "$1" in
    create) echo container ;;
    info) echo / ;;
esac
[ "$1" != "${FAILS:-}" ]
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What was asked of the engine, a line a call."""
    program = tmp_path / "docker"
    program.write_text(_WITH_IMAGES)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def test_the_images_for_nodes_are_those_that_were_built(
    calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server's gets this environment's packages where the mount would be, and its name last;
    nothing is built anew, and no container is left."""
    assert image.main(["whole"]) == 0
    asked = calls.read_text().splitlines()
    built = asked[0].removeprefix("image inspect ")
    health = asked[1].removeprefix("image inspect ")
    assert built.startswith("dspark-rocm/server:rehearsal-")
    assert health.startswith("dspark-rocm/healthcheck:rehearsal-")
    assert asked[3:] == [
        f"create {built}",
        f"cp {image.site_packages()}/. container:/opt/rehearsal/site",
        f"commit container {image.SERVER_ON_NODES}",
        "rm --force container",
        f"tag {health} {image.HEALTH_ON_NODES}",
    ]
    assert capsys.readouterr().out.split() == [image.SERVER_ON_NODES, image.HEALTH_ON_NODES]


@pytest.mark.parametrize(
    ("words", "fails", "code", "told"),
    [
        (["whole"], "image", 1, "this engine has none: make build PROFILE=rehearsal"),
        (["whole"], "cp", 1, "rehearsal: docker cp: 1"),
        (["hole"], "", 2, "rehearsal: hole: give `whole` or nothing"),
    ],
)
def test_images_for_nodes_that_cannot_be_made_are_told_in_one_line(
    words: list[str],
    fails: str,
    code: int,
    told: str,
    calls: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing gets a name then, and what was begun is taken away."""
    monkeypatch.setenv("FAILS", fails)
    assert image.main(words) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(told)
    asked = calls.read_text() if calls.exists() else ""
    assert "commit" not in asked and "tag" not in asked
    assert asked.count("create") == asked.count("rm --force")


def test_packages_of_two_environments_are_both_inside(
    calls: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where a release's environment is laid over another's, each lies where its mount would."""
    monkeypatch.setattr(image, "base_packages", lambda: tmp_path)
    assert image.main(["whole"]) == 0
    copied = [line for line in calls.read_text().splitlines() if line.startswith("cp ")]
    assert copied == [
        f"cp {tmp_path}/. container:/opt/rehearsal/base",
        f"cp {image.site_packages()}/. container:/opt/rehearsal/site",
    ]
