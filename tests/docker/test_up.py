"""`python3 -m deploy containers up` on a real engine, when the server cannot come up."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.rehearsal import image as stand_in
from deploy.rehearsal.supervisor import free_port
from tests.support.containers import Build, Images

pytestmark = pytest.mark.docker


def test_a_crash_loop_names_its_cause(build: Build, images: Images, tmp_path: Path) -> None:
    """A server that ends again and again is not waited for: `up` explains its log and fails."""
    empty = tmp_path / "site"
    empty.mkdir()
    given = {
        "COMPOSE_PROJECT_NAME": f"dspark-test-loop-{os.getpid()}",
        "SERVER_IMAGE": images.server,
        "HEALTH_IMAGE": images.health,
        "SERVER_PORT": str(free_port()),
        "HEALTH_PORT": str(free_port()),
        "REHEARSAL_SITE": str(empty),  # torch is not there,
        "REHEARSAL_BASE": str(empty),  # nor here
    }

    def host(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "deploy", "containers", "--profile", "rehearsal", command],
            cwd=build.context,
            env={**os.environ, **given},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )

    try:
        ended = host("up")
        assert ended.returncode == 1, ended.stdout
        assert "host: the server ended 3 times; its log says:" in ended.stdout
        told = ended.stdout.partition("its log says:")[2]
        assert "No module named 'torch'" in told
    finally:
        assert host("down").returncode == 0


def test_compose_alone_builds_starts_and_waits(build: Build, images: Images) -> None:
    """Without make, Python or a file of variables: the profile's name, and of a rehearsal its bases
    and packages. It returns when both containers are healthy, which takes sampled text."""
    project = f"dspark-test-alone-{os.getpid()}"
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "DSPARK_PROFILE": "rehearsal",
        "COMPOSE_PROJECT_NAME": project,
        "SERVER_IMAGE": f"{project}/server",
        "HEALTH_IMAGE": f"{project}/healthcheck",
        "BASE_IMAGE": images.base,
        "HEALTH_BASE_IMAGE": images.root,
        "REHEARSAL_SITE": str(stand_in.site_packages()),
        "SERVER_PORT": str(free_port()),
        "HEALTH_PORT": str(free_port()),
    }

    def compose(*words: str) -> subprocess.CompletedProcess[str]:
        files = [f"--file=deploy/{name}.yaml" for name in ("compose", "compose.rehearsal")]
        return subprocess.run(
            ["docker", "compose", *files, *words],
            cwd=build.context,
            env=environ,
            capture_output=True,
            text=True,
            timeout=550,
            check=False,
        )

    try:
        up = compose("up", "--wait")
        assert up.returncode == 0, up.stdout + up.stderr
        asked = compose("exec", "-T", "healthcheck", "python3", "-m", "healthcheck", "check")
        assert (asked.returncode, asked.stdout.split()[0]) == (0, "READY")
    finally:
        compose("down", "--volumes", "--rmi", "all", "--timeout", "5")
