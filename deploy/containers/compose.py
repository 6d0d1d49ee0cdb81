"""`docker compose` with the files of a profile: what runs, how it is started, watched and told."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.recipe import Profile

ROOT = Path(__file__).resolve().parents[2]
# A server that ended this often without ever being ready will not be ready.
RESTARTS = 3
POLL_S = 2.0
_LOG = "/var/log/dspark-rocm/server.log"


class HostError(RuntimeError):
    """The containers cannot be had here; the message is one line: setting, value seen, fix."""


def require_compose() -> None:
    """Raises HostError unless `docker compose` is there, which a client alone does not bring, and
    an engine answers."""
    if run_program(["docker", "compose", "version"], capture=True).returncode:
        raise HostError(
            "docker compose: is not installed; install the package docker-compose (Debian 13) or "
            "docker-compose-plugin (Docker's own)"
        )
    asked = run_program(["docker", "ps", "--quiet"], capture=True)
    if asked.returncode:
        told = asked.stderr.strip().splitlines()
        raise HostError(f"docker: {told[-1] if told else 'no engine answers'}; start the engine")


@dataclass(frozen=True)
class Compose:
    """`docker compose` with the files of a profile."""

    profile: Profile
    env_file: Path

    def command(self, *arguments: str) -> list[str]:
        """The whole command line."""
        files = ["compose.yaml", *(["compose.rehearsal.yaml"] if self.profile.is_rehearsal else [])]
        chosen = [word for file in files for word in ("--file", str(ROOT / "deploy" / file))]
        return ["docker", "compose", "--env-file", str(self.env_file), *chosen, *arguments]

    def call(self, *arguments: str) -> int:
        """Run it in the foreground and return its exit code. Raises HostError without docker."""
        return run_program(self.command(*arguments)).returncode

    def run(self, *arguments: str) -> None:
        """Run it in the foreground. Raises HostError when it fails."""
        code = self.call(*arguments)
        if code:
            raise HostError(
                f"docker compose {arguments[0]}: ended with {code}; see its lines above"
            )

    def health(self, *arguments: str) -> int:
        """`python3 -m healthcheck` inside the health service."""
        return self.call("exec", "-T", "healthcheck", "python3", "-m", "healthcheck", *arguments)

    def keep_previous(self, image: str) -> None:
        """Name the image that runs now, if it is another one, so that `up` can go back to it."""
        container = self._server()
        if not container:
            return
        running = _read(["docker", "inspect", "--format", "{{.Image}}", container])
        if running != _read(["docker", "inspect", "--format", "{{.Id}}", image]):
            kind = "rehearsal-" if self.profile.is_rehearsal else ""
            run_program(["docker", "tag", running, f"dspark-rocm/server:{kind}previous"])

    def wait(self) -> int:
        """Until the health service is ready, the start budget is spent, or the server gave up.

        Every change is told on stderr; a server that ends again and again is explained.
        """
        budget = f"{self.profile.health.start_budget_s:g}"
        container = self._server()
        before = _restarts(container)
        command = self.command(
            *("exec", "-T", "healthcheck", "python3", "-m", "healthcheck", "wait"),
            *("--timeout", budget),
        )
        with subprocess.Popen(command, env=_environ()) as waiting:
            while waiting.poll() is None:
                if _restarts(container) - before >= RESTARTS:
                    waiting.terminate()
                    waiting.wait()
                    print(f"host: the server ended {RESTARTS} times; its log says:", flush=True)
                    self.health("explain", f"{_LOG}.1")
                    return 1
                time.sleep(POLL_S)
        return waiting.returncode

    def _server(self) -> str:
        """The id of the server's container, empty when there is none."""
        return _read(self.command("ps", "--all", "--quiet", "server"))


def _environ() -> dict[str, str]:
    """This environment without what is set and empty, for which compose would not read its file."""
    return {name: value for name, value in os.environ.items() if value}


def _restarts(container: str) -> int:
    told = _read(["docker", "inspect", "--format", "{{.RestartCount}}", container])
    return int(told) if told.isdigit() else 0


def _read(command: Sequence[str]) -> str:
    """What a command prints, empty when it fails."""
    return run_program(command, capture=True).stdout.strip()


def run_program(
    command: Sequence[str], *, capture: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a program in the checkout. Raises HostError where it is not installed."""
    try:
        return subprocess.run(
            command, cwd=ROOT, env=_environ(), capture_output=capture, text=True, check=False
        )
    except FileNotFoundError as e:
        raise HostError(
            "docker: is not installed; install an engine with its compose plugin"
        ) from e
