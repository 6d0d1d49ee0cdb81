"""A Docker engine for the tests: the one that runs, or Debian's own, started and stopped here.

An engine that runs is used as it is: never configured, restarted, or joined by a second one. In CI
an engine that is missing is installed; for a user, only on request:

    sudo PYTHON -m tests.support.docker_engine
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from docker.errors import DockerException

import docker

# Debian 12's own engine is 20.10; these are Debian 13's, which install on 12 without other upgrades.
_PACKAGES = ("docker.io", "docker-cli", "docker-buildx", "docker-compose")
_EXTRAS = ("docker-registry", "mmdebstrap")
_SOURCE = """Types: deb
URIs: {mirror}
Suites: trixie
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
_PIN = "Package: *\nPin: release n=trixie\nPin-Priority: 100\n"
_PROGRAMS = ("dockerd", "docker-registry", "mmdebstrap")
_START_S = 90.0


class NoEngineError(RuntimeError):
    """There is no engine and none may be made here; the message says what would give one."""


@contextmanager
def engine() -> Iterator[docker.DockerClient]:
    """A client of a running engine. Raises NoEngineError."""
    try:
        yield _running()
        return
    except DockerException as error:
        why = str(error)
    if _daemon_lives():
        raise NoEngineError(f"dockerd runs and does not answer ({why}): look at its log")
    if not all(map(shutil.which, _PROGRAMS)):
        if not in_ci():
            raise NoEngineError(
                f"no Docker engine answers: start one, or install Debian's: {_fix()}"
            )
        install()
    if os.geteuid() != 0:
        raise NoEngineError("no Docker engine answers, and only root may start one")
    try:
        yield _running()  # systemd starts what apt installs
        return
    except DockerException:
        pass
    with _started():
        yield _running()


def in_ci() -> bool:
    """Whether a missing engine is a failure."""
    return os.environ.get("CI") == "true"


def _running() -> docker.DockerClient:
    client = docker.from_env(timeout=120)
    client.ping()
    return client


def _daemon_lives() -> bool:
    pid_file = Path("/var/run/docker.pid")
    return pid_file.exists() and Path("/proc", pid_file.read_text().strip()).exists()


def install() -> None:
    """Install Debian's engine and what the tests use with it. Raises NoEngineError."""
    release = _debian()
    if os.geteuid() != 0 or release not in ("bookworm", "trixie"):
        raise NoEngineError(
            f"Docker: cannot be installed by user {os.geteuid()} on {release or 'no Debian'}: "
            "be root on Debian 12 or 13, or start an engine that is there"
        )
    if release == "bookworm":
        source = _SOURCE.format(mirror=_mirror(release))
        Path("/etc/apt/sources.list.d/trixie.sources").write_text(source)
        Path("/etc/apt/preferences.d/trixie").write_text(_PIN)
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends"]
        + [f"{name}/trixie" for name in _PACKAGES]
        + list(_EXTRAS),
    ):
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoEngineError(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")


def _mirror(release: str) -> str:
    """Where this host's own apt takes the release from. Raises NoEngineError."""
    listing = ["apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)"]
    told = subprocess.run(listing, capture_output=True, text=True, check=False).stdout
    for line in told.splitlines():
        suite, component, uri = line.split(" ", 2)
        if (suite, component) == (release, "main"):
            return uri
    raise NoEngineError(f"apt: lists no source of {release} main; run apt-get update")


def _debian() -> str:
    """The codename of this Debian, empty on anything else."""
    release = Path("/etc/os-release")
    text = release.read_text() if release.exists() else ""
    named = re.search(r'^VERSION_CODENAME="?(\w+)"?$', text, re.MULTILINE)
    is_debian = re.search(r'^ID="?debian"?$', text, re.MULTILINE)
    return named[1] if named and is_debian else ""


def _fix() -> str:
    """The command that installs an engine here."""
    return f"sudo {sys.executable} -m tests.support.docker_engine"


@contextmanager
def _started() -> Iterator[None]:
    """dockerd for as long as the tests run. Raises NoEngineError with the end of its log."""
    log = Path("/var/log/dspark-test-dockerd.log")
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            ["dockerd"], stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        ends = time.monotonic() + _START_S
        while time.monotonic() < ends and daemon.poll() is None:
            try:
                _running()
                break
            except DockerException:
                time.sleep(0.5)
        else:
            raise NoEngineError(f"dockerd does not start: {log.read_text()[-600:]}")
        yield
    finally:
        daemon.terminate()
        daemon.wait(60)


if __name__ == "__main__":
    try:
        install()
    except NoEngineError as refused:
        sys.exit(f"docker_engine: {refused}")
