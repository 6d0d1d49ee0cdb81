"""A rehearsal server for tests: started as its users start it, and never left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import requests

from deploy.rehearsal.environment import DEFAULT_ARCH, QWEN
from deploy.rehearsal.supervisor import free_port
from tests.support.waiting import until

REPOSITORY = Path(__file__).resolve().parents[2]
MODEL = "rehearsal"

ENGINE_CORE = "VLLM::EngineCore"
WORKER = "VLLM::Worker"

# A start is ten seconds on two idle cores; on a busy machine it may be several times that.
_READY_DEADLINE = 400.0
# What a server may take to stop by itself before it is killed, and then to be gone.
_GRACE_S = 30.0


class RehearsalServer:
    """``python3 -m deploy.rehearsal serve`` as a process group of its own, with its log in a file.

    Entering waits until the server answers or ends; ``wait=False`` only starts it. ``trigger`` is
    the file that REHEARSAL_TRIGGER names, ``key`` what it asks its clients for, ``profile`` and
    ``arch`` choose the AMD classes.
    Leaving stops every process, stopped ones included, with `grace_s` seconds to do it by itself.
    """

    def __init__(
        self,
        log: Path,
        *,
        fault: str | None = None,
        trigger: Path | None = None,
        port: int | None = None,
        key: str | None = None,
        profile: str = QWEN,
        arch: str = DEFAULT_ARCH,
        wait: bool = True,
        grace_s: float = _GRACE_S,
    ) -> None:
        self.log = log
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._fault = fault
        self._trigger = trigger
        self._key = key
        self._profile = profile
        self._arch = arch
        self._wait = wait
        self._grace_s = grace_s
        self._family: set[psutil.Process] = set()

    def __enter__(self) -> Self:
        command, environment = self._start()
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            if self._wait:
                self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def wait_ready(self, deadline: float = _READY_DEADLINE) -> None:
        """Return once /health is 200; raise AssertionError with the log's end if it never is."""

        def listens() -> bool:
            self.remember_family()
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode}:\n{self.log_end()}")
            return self.health() == 200

        until(listens, within_s=deadline, pause_s=0.25, why=self.log_end)

    def wait_exit(self, deadline: float = _READY_DEADLINE) -> int:
        """The exit code of the server; raise AssertionError if it does not end."""
        try:
            return self.process.wait(deadline)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {deadline} s:\n{self.log_end()}") from None

    def health(self, timeout: float = 5.0) -> int | None:
        """The status of GET /health, None if nothing answers within ``timeout`` seconds."""
        try:
            return requests.get(f"{self.url}/health", timeout=timeout).status_code
        except requests.RequestException:
            return None

    def complete(self, timeout: float = 300.0, **body: object) -> requests.Response:
        """POST /v1/completions with defaults for what ``body`` leaves out."""
        defaults = {
            "model": MODEL,
            "prompt": "the water is",
            "max_tokens": 24,
            "temperature": 1.0,
            "seed": 7,
            "ignore_eos": True,
        }
        return requests.post(
            f"{self.url}/v1/completions",
            json={**defaults, **body},
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=timeout,
        )

    def counters(self) -> dict[str, float]:
        """The speculation counters of /metrics, by name without prefix and labels but position."""
        text = requests.get(f"{self.url}/metrics", timeout=30).text
        prefix = "vllm:spec_decode_num_"
        found = {}
        for line in text.splitlines():
            if line.startswith(prefix) and "_created" not in line:
                labelled, value = line.rsplit(" ", 1)
                name, _, labels = labelled.removeprefix(prefix).partition("{")
                if 'position="' in labels:
                    name += ":" + labels.partition('position="')[2].partition('"')[0]
                found[name] = float(value)
        return found

    def pid_of(self, title: str) -> int:
        """The pid of `ENGINE_CORE` or `WORKER`, found by its process title."""
        for process in self.remember_family():
            with contextlib.suppress(psutil.Error):
                if any(title in part for part in process.cmdline()):
                    return process.pid
        raise AssertionError(f"no process titled {title}:\n{self.log_end()}")

    def remember_family(self) -> set[psutil.Process]:
        """The server and its descendants, those of earlier calls included."""
        with contextlib.suppress(psutil.Error):
            leader = psutil.Process(self.process.pid)
            self._family |= {leader, *leader.children(recursive=True)}
        return self._family

    def survivors(self, within_s: float = 0.0) -> list[psutil.Process]:
        """Processes of the server that still run, after `within_s` at most: a child ends when it
        notices that its parent has. Zombies are ended processes."""
        until = time.monotonic() + within_s
        while alive := [process for process in self.remember_family() if _runs(process)]:
            if time.monotonic() >= until:
                break
            time.sleep(0.1)
        return alive

    def stop(self) -> None:
        """Interrupt the server as Ctrl-C does, then kill by pid whatever is left of it."""
        self.remember_family()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(self._grace_s)
        for process in self.survivors():
            with contextlib.suppress(psutil.Error):
                process.kill()  # reaches a stopped process too
        self.process.wait(_GRACE_S)

    def log_text(self) -> str:
        """The whole log."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def log_end(self, lines: int = 30) -> str:
        """The last lines of the log."""
        return "\n".join(self.log_text().splitlines()[-lines:])

    def _start(self) -> tuple[list[str], dict[str, str]]:
        """The command and its environment."""
        command = [sys.executable, "-m", "deploy.rehearsal", "serve", "--profile", self._profile]
        return [*command, "--port", str(self.port)], self._environment()

    def _environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("REHEARSAL_")}
        kept["REHEARSAL_ARCH"] = self._arch
        if self._fault:
            kept["REHEARSAL_FAULT"] = self._fault
        if self._trigger:
            kept["REHEARSAL_TRIGGER"] = str(self._trigger)
        kept.pop("VLLM_API_KEY", None)
        if self._key:
            kept["VLLM_API_KEY"] = self._key
        return kept


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
