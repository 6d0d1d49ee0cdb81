"""Server and health service of the rehearsal, run together and always stopped together."""

from __future__ import annotations

import errno
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from deploy import recipe
from deploy.rehearsal.environment import check_arch, check_fault
from deploy.rehearsal.errors import RehearsalError
from deploy.rehearsal.server import check_platform, check_port_free
from healthcheck import explain
from healthcheck import smoke as test
from healthcheck.client import Client
from healthcheck.client.answers import Answer
from healthcheck.flights.recorder import recording

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
#: Server log with its vital signs, health log: beside the smoke report, so that a user finds them.
LOGS = ROOT / "build" / "rehearsal"
#: What the server answered on /metrics after the smoke test, beside the logs.
METRICS = "metrics.txt"

# Below those that the kernel hands out by itself (ip_local_port_range, from 32768): what is free
# stays free until it is used.
PORTS = range(20_000, 32_768)

# Beyond --shutdown-timeout, for a server that cannot drain (a stopped engine); seconds.
_KILL_AFTER_S = 5.0
_POLL_S = 0.1


@dataclass(frozen=True)
class Child:
    """One process group that the supervisor started, with its log file."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def ended(self) -> str | None:
        """How the process ended, or None while it runs."""
        code = self.process.poll()
        if code is None:
            return None
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return f"{self.name} ended with {how}"

    def stop(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL for all of the group that is left after `grace_s` seconds."""
        deadline = time.monotonic() + grace_s
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()

    def kill(self) -> None:
        """End the whole group at once: engine and workers outlive a server that was killed."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass(frozen=True)
class Running:
    """A started rehearsal: where it answers, and its processes."""

    server_url: str
    health_url: str
    server: Child
    health: Child

    def ended(self) -> str | None:
        """How the first process to end did so, or None while both run."""
        return self.server.ended() or self.health.ended()


@contextmanager
def rehearsal(
    name: str,
    server_port: int,
    health_port: int,
    logs: Path = LOGS,
    environ: Mapping[str, str] = os.environ,
) -> Iterator[Running]:
    """Start both processes of a profile; stop them by pid on the way out, however that is taken.

    Raises RehearsalError before anything is started: an unknown fault or architecture, a
    port that is taken, an environment without vLLM, or a folder of logs that cannot be written.
    """
    check_fault(environ.get("REHEARSAL_FAULT"), name)
    check_arch(environ.get("REHEARSAL_ARCH"))
    check_platform(recipe.load().vllm.version)
    for port in (server_port, health_port):
        check_port_free(HOST, port)
    _make(logs)
    profile = recipe.load().profile(name)
    grace_s = float(profile.serve["shutdown-timeout"]) + _KILL_AFTER_S
    server_url = f"http://{HOST}:{server_port}"
    python = [sys.executable, "-m"]
    server_command = [
        *(*python, "deploy.rehearsal", "serve", "--profile", name, "--port", str(server_port))
    ]
    health_command = [
        *(*python, "healthcheck", "serve", "--profile", name, "--target", server_url),
        *("--host", HOST, "--port", str(health_port), "--log", str(logs / "server.log")),
        *("--drain", "0"),  # nobody routes to a rehearsal
    ]
    children: list[Child] = []
    try:
        children.append(_start("server", server_command, logs, environ))
        children.append(_start("health", health_command, logs, environ))
        with recording(children[0].process, children[0].log):
            yield Running(server_url, f"http://{HOST}:{health_port}", *children)
    finally:
        # the health service first, as in production: unready before the server drains
        for child, seconds in zip(
            reversed(children), (_KILL_AFTER_S, grace_s)[-len(children) :], strict=True
        ):
            child.stop(seconds)


def _make(logs: Path) -> None:
    try:
        logs.mkdir(parents=True, exist_ok=True)
        for name in ("server", "health"):
            (logs / f"{name}.log").open("wb").close()
    except OSError as error:
        raise RehearsalError(
            f"{error.filename}: {error.strerror}: logs go there: make it writable"
        ) from error


def run(name: str, server_port: int, health_port: int, say: Callable[[str], None]) -> int:
    """Both services in the foreground until one ends or a signal comes. Returns an exit code."""
    with _interruptible(), rehearsal(name, server_port, health_port) as running:
        try:
            say(f"server  {running.server_url}  (log {running.server.log})")
            say(f"health  {running.health_url}  (log {running.health.log})")
            say("ready when the health service says so; Ctrl-C stops both")
            while (end := running.ended()) is None:
                time.sleep(_POLL_S)
        except KeyboardInterrupt:
            say("stopping")
            return 130
        say(end)
        explain.main([str(running.server.log)])
        return 1


def smoke(
    name: str,
    files: test.Files,
    say: Callable[[str], None],
    full: bool | None = None,
    logs: Path = LOGS,
) -> int:
    """Start both, run the smoke test on them, name the cause of a failure, stop both.

    `logs` is the folder for their logs and for METRICS.

    Returns the smoke test's exit code; 130 when interrupted.
    """
    profile = recipe.load().profile(name)
    connect_s = profile.health.connect_timeout_s
    try:
        with _interruptible(), rehearsal(name, free_port(), free_port(), logs) as running:
            server = Client(running.server_url, connect_timeout_s=connect_s)
            say(f"server {running.server_url} (log {running.server.log})")
            report = test.run(
                test.Target(
                    client=server,
                    profile=profile,
                    model=profile.served_model_name,
                    wait_s=profile.health.start_budget_s,
                    health=Client(running.health_url, connect_timeout_s=connect_s),
                    ended=running.ended,
                    say=say,
                    full=full,
                )
            )
            _keep_metrics(server, profile.health.probe_timeout_s, logs / METRICS)
            if report.exit_code:
                report.cause = _cause(running.server.log)
                if report.cause is None and (end := running.ended()):
                    say(f"{end}; its log ends: {_last_line(running.server.log)}")
    except KeyboardInterrupt:
        say("interrupted; server and health service are stopped")
        return 130
    return test.finish(report, files)


def _keep_metrics(server: Client, deadline_s: float, file: Path) -> None:
    """What the server answers on /metrics, in a file; none where it does not answer."""
    file.unlink(missing_ok=True)
    answer = server.get("/metrics", deadline_s=deadline_s)
    if isinstance(answer, Answer) and answer.status == 200:
        file.write_bytes(answer.body)


def _cause(log: Path) -> Mapping[str, object] | None:
    """What the server's log tells of a failure, None if it tells of none."""
    with log.open("rb") as stream:
        cause = explain.explain_stream(stream).cause
    return None if cause is None else asdict(cause)


def _last_line(log: Path) -> str:
    """The last line of a log that holds anything, shortened."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "nothing")


def free_port() -> int:
    """A TCP port of this host that nothing listens on now. Raises OSError if none is found."""
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise OSError(errno.EADDRINUSE, f"no port from {PORTS[0]} to {PORTS[-1]} is free")


def _start(name: str, command: Sequence[str], logs: Path, environ: Mapping[str, str]) -> Child:
    log = logs / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the supervisor alone, which stops in order
        )
    return Child(name, process, log)


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the foreground run as Ctrl-C does."""

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
