"""A real server, the health services that watch it, and what the figures do to them.

Everything is started as a user starts it, in processes of its own; a service that should not take
part for a while is stopped with SIGSTOP, so that it costs nothing and loses nothing.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import requests

from deploy import recipe
from deploy.recipe import Health
from deploy.rehearsal.shim.dspark_rehearsal.faults import HANG_IN_DRAFT
from deploy.rehearsal.supervisor import free_port
from healthcheck.client import Client, exposition
from healthcheck.client.exposition import Exposition
from healthcheck.signs.writer import watching
from tests.bench.figure import BenchError
from tests.support.rehearsal_server import (
    ENGINE_CORE,
    MODEL,
    REPOSITORY,
    RehearsalServer,
)

SHIPPED, QUICK = "rehearsal", "quick"
# What a site would write that wants a stop to be seen within seconds: more canaries, less patience.
# The gate's long prompt is shorter as well, to show what that saves.
QUICK_BUDGETS = """
scrape_interval_s = 2.0
canary_after_s = 4.0
canary_timeout_s = 8.0
readiness_budget_s = 8.0
long_prompt_tokens = [600]
"""
POLL_S = 0.05
# The longest time between two canaries, within which a stop may come at any moment.
PHASE_S = {SHIPPED: 18.0, QUICK: 5.0}
READY_DEADLINE_S = 400.0
FOUND_DEADLINE_S = 120.0
STOP_DEADLINE_S = 20.0


@dataclass
class Service:
    """`python3 -m healthcheck serve` on a server."""

    profile: str
    url: str
    process: subprocess.Popen[bytes]

    def ready(self) -> bool:
        """/readyz answers 200 now."""
        try:
            return requests.get(f"{self.url}/readyz", timeout=5).status_code == 200
        except requests.RequestException:
            return False

    def report(self) -> dict[str, Any]:
        """/report."""
        answer: dict[str, Any] = requests.get(f"{self.url}/report", timeout=10).json()
        return answer

    def wait(self, ready: bool, deadline_s: float) -> float | None:
        """Seconds until /readyz said so, None if it did not by the deadline."""
        began = time.monotonic()
        while time.monotonic() - began < deadline_s:
            if self.ready() is ready:
                return time.monotonic() - began
            time.sleep(POLL_S)
        return None

    def wait_ready(self) -> None:
        """Wait for 200; raises BenchError with the reasons."""
        if self.wait(True, READY_DEADLINE_S) is None:
            raise BenchError(
                f"{self.profile}: not ready in {READY_DEADLINE_S:.0f} s: {self.line()}"
            )

    def line(self) -> str:
        """State and reasons on one line."""
        return str(self.report()["output"])

    def wait_for(self, word: str, deadline_s: float) -> bool:
        """Whether the line of state and reasons held the word by the deadline, and not ready."""
        ends = time.monotonic() + deadline_s
        while word not in self.line():
            if time.monotonic() > ends:
                return False
            time.sleep(0.5)
        return not self.ready()

    def pause(self) -> None:
        """Take no part from now on."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Take part again."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it."""
        self.resume()
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_DEADLINE_S)


@contextlib.contextmanager
def service(
    profile: str, target: str, *flags: str, model: str = MODEL, **environ: str
) -> Iterator[Service]:
    """A health service with a profile's budgets, ended at the end."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "healthcheck", "serve", "--profile", profile, *flags]
    command += ["--target", target, "--model", model, "--port", str(port)]
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    made = Service(profile, url, process)
    try:
        _until(lambda: _answers(f"{url}/livez"), STOP_DEADLINE_S, f"{profile}: /livez")
        yield made
    finally:
        made.stop()


def _answers(url: str) -> bool:
    with contextlib.suppress(requests.RequestException):
        return requests.get(url, timeout=5).status_code == 200
    return False


def _until(true: Callable[[], bool], deadline_s: float, what: str) -> float:
    """Seconds until it was true. Raises BenchError at the deadline."""
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > deadline_s:
            raise BenchError(f"{what}: nothing in {deadline_s:.0f} s; look at the machine's load")
        time.sleep(POLL_S)
    return time.monotonic() - began


@dataclass
class Gate:
    """One pass of the gate, in seconds: from the open port to /readyz 200, and each step."""

    label: str
    to_ready_s: float
    steps: dict[str, float]

    @property
    def after_first_token_s(self) -> float:
        """What the gate costs a user: the first request would have had to compile as well."""
        return self.to_ready_s - self.steps.get("warm-up", 0.0)


@dataclass
class Watched:
    """The real server with two services on it: one as shipped, which sees the vital signs of its
    processes, and a quick one, which has HTTP alone."""

    server: RehearsalServer
    services: dict[str, Service]
    gates: list[Gate] = field(default_factory=list)
    found: dict[tuple[str, bool], list[float | None]] = field(default_factory=dict)
    deadlocks: list[float | None] = field(default_factory=list)  # as shipped, busy
    hang: Path | None = None  # while this file is there, the draft of a request hangs, asleep

    @contextlib.contextmanager
    def only(self, profile: str | None) -> Iterator[None]:
        """Only that service takes part, or none; all are ready again at the end."""
        others = [s for name, s in self.services.items() if name != profile]
        for other in others:
            other.pause()
        try:
            yield
        finally:
            for other in others:
                other.resume()
            for other in others:
                other.wait_ready()

    @contextlib.contextmanager
    def stopped_engine(self) -> Iterator[float]:
        """EngineCore SIGSTOPped; gives the time at which it was."""
        core = self.server.pid_of(ENGINE_CORE)
        os.kill(core, signal.SIGSTOP)
        try:
            yield time.monotonic()
        finally:
            os.kill(core, signal.SIGCONT)

    @contextlib.contextmanager
    def hung_draft(self) -> Iterator[float]:
        """The next draft hangs asleep; gives the time from which on it may."""
        assert self.hang is not None
        self.hang.touch()
        try:
            yield time.monotonic()
        finally:
            self.hang.unlink()

    def counted(self) -> Exposition:
        """The server's numbers now. Raises BenchError if it does not give them."""
        seen = exposition.read(Client(self.server.url).get("/metrics", deadline_s=30))
        if not isinstance(seen, Exposition):
            raise BenchError(f"/metrics of the rehearsal: {seen.detail}; look at its log")
        return seen

    def generated(self) -> float:
        """Tokens that it has generated since its start."""
        return sum(e.generation_tokens for e in self.counted().engines)

    def cpu_s(self) -> float:
        """CPU seconds that the server and its children have used."""
        used = 0.0
        for process in self.server.survivors():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                used += times.user + times.system
        return used

    def time_to_find_a_stop(self, profile: str, busy: bool, draw: random.Random) -> float | None:
        """SIGSTOP the engine at some moment; seconds until /readyz is 503, None if never.

        The service is ready again at the end."""
        seconds = self._time_to_find(profile, busy, draw, self.stopped_engine)
        self.found.setdefault((profile, busy), []).append(seconds)
        return seconds

    def time_to_find_a_deadlock(self, draw: random.Random) -> None:
        """The same of a draft that hangs under work, for the service as shipped."""
        self.deadlocks.append(self._time_to_find(SHIPPED, True, draw, self.hung_draft))

    def _time_to_find(
        self,
        profile: str,
        busy: bool,
        draw: random.Random,
        fault: Callable[[], contextlib.AbstractContextManager[float]],
    ) -> float | None:
        service = self.services[profile]
        service.wait_ready()
        with self.load(2) if busy else contextlib.nullcontext():
            if busy:
                self.wait_for_work()
            time.sleep(draw.uniform(2, 2 + PHASE_S[profile]))
            with fault() as at:
                found = service.wait(False, FOUND_DEADLINE_S)
                seconds = None if found is None else time.monotonic() - at
        service.wait_ready()
        return seconds

    def wait_for_work(self) -> None:
        """Return when requests run and have got a token just now. Raises BenchError."""
        before = self.generated()

        def works() -> bool:
            running = any(e.running for e in self.counted().engines)
            return running and self.generated() > before

        _until(works, FOUND_DEADLINE_S, "tokens of the load")

    @contextlib.contextmanager
    def load(self, requests_at_once: int, tokens: int = 64) -> Iterator[None]:
        """So many requests at any time, one after another."""
        over = threading.Event()

        def ask(number: int) -> None:
            count = 0
            while not over.is_set():
                count += 1
                prompt = f"story {number} of {count}: the water is"
                with contextlib.suppress(requests.RequestException):
                    self.server.complete(max_tokens=tokens, prompt=prompt, seed=count)

        threads = [
            threading.Thread(target=ask, args=(n,), daemon=True) for n in range(requests_at_once)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()


@contextlib.contextmanager
def real_server() -> Iterator[Watched]:
    """A rehearsal server that two services have seen start, both ready."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        quick = quick_recipe(folder)
        log, hang = folder / "server.log", folder / "hang"
        server = RehearsalServer(log, fault=HANG_IN_DRAFT, trigger=hang, wait=False)
        shipped = stack.enter_context(service(SHIPPED, server.url, "--log", str(log)))
        stack.enter_context(server)
        stack.enter_context(watching(server.process, log))
        made = Watched(server, {SHIPPED: shipped}, hang=hang)
        made.gates.append(_gate(made, shipped, "first start", wait_for_port=True))
        again = stack.enter_context(service(QUICK, server.url, DSPARK_RECIPE=str(quick)))
        made.services[QUICK] = again
        made.gates.append(_gate(made, again, "again, long prompt of 600", wait_for_port=False))
        shipped.wait_ready()
        yield made


def quick_recipe(folder: Path) -> Path:
    """The recipe with a profile added to it: the rehearsal's, its last one, with quick budgets."""
    path = folder / "recipe.toml"
    text = recipe.FILE.read_text(encoding="utf-8")
    profile = text[text.index(f"[profiles.{SHIPPED}]") :].replace(
        f"[profiles.{SHIPPED}", f"[profiles.{QUICK}"
    )
    keys = {line.split(" = ")[0] for line in QUICK_BUDGETS.split("\n") if line}
    kept = [line for line in profile.split("\n") if line.split(" = ")[0] not in keys]
    path.write_text("\n".join([text, *kept]) + QUICK_BUDGETS, encoding="utf-8")
    return path


def budgets(profile: str) -> Health:
    """The budgets that a service of one of the two profiles runs with."""
    with tempfile.TemporaryDirectory() as folder:
        return recipe.load(quick_recipe(Path(folder))).profile(profile).health


def _gate(made: Watched, watching: Service, label: str, wait_for_port: bool) -> Gate:
    if wait_for_port:
        _until(lambda: made.server.health(1.0) == 200, READY_DEADLINE_S, "the rehearsal's /health")
    began = time.monotonic()
    watching.wait_ready()
    seconds = time.monotonic() - began
    stages = watching.report()["start"]
    steps = {
        s["stage"].removeprefix("gate: "): s["seconds"] for s in stages if "gate: " in s["stage"]
    }
    return Gate(label, seconds, steps)
