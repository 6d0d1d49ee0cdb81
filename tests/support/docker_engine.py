"""A Docker engine for the tests: the one that runs, or Debian's own, started and stopped here.

An engine that runs is used as it is: never configured, restarted, or joined by a second one.
"""

import os
import shutil
import subprocess
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
URIs: http://deb.debian.org/debian
Suites: trixie
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
_PIN = "Package: *\nPin: release n=trixie\nPin-Priority: 100\n"
INSTALL = "apt-get install docker.io docker-buildx docker-compose docker-registry mmdebstrap"
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
    if not _may_install():
        raise NoEngineError(f"no Docker engine answers: start one, or as root: {INSTALL}")
    if any(shutil.which(name) is None for name in ("dockerd", "docker-registry", "mmdebstrap")):
        _install()
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


def _may_install() -> bool:
    release = Path("/etc/os-release")
    text = release.read_text() if release.exists() else ""
    return os.geteuid() == 0 and 'VERSION_CODENAME="bookworm"' in text.replace(
        "=bookworm", '="bookworm"'
    )


def _install() -> None:
    Path("/etc/apt/sources.list.d/trixie.sources").write_text(_SOURCE)
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


@contextmanager
def _started() -> Iterator[None]:
    """dockerd for as long as the tests run. Raises NoEngineError with the end of its log."""
    log = Path("/var/log/dspark-test-dockerd.log")
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            ["dockerd"], stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        until = time.monotonic() + _START_S
        while time.monotonic() < until and daemon.poll() is None:
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
