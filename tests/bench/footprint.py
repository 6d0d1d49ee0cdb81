"""Figure: memory and CPU of the service with the default budgets, on an idle and a busy server."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from deploy import recipe
from healthcheck.signs import writer
from healthcheck.signs.gather import Gatherer
from healthcheck.signs.model import INTERVAL_S, dump
from tests.bench.figure import Figure, Goal, Strip
from tests.bench.watched import READY_DEADLINE_S, Service, service
from tests.support.scripted_server import MODEL, ScriptedServer

PROFILE = "mi355x"
SECONDS = 30
MEMORY_GOAL_MB = 60.0
CPU_GOAL = 1.0  # percent of a core
WRITER = "writer of the signs"
RANKS = 8
LOOKS = 50
# A whole exposition of vLLM 0.27.1, of which the scripted server renders what the verdict reads.
CAPTURE = recipe.load().vllm.metrics


class FullServer(ScriptedServer):
    """A scripted server whose /metrics is as long as the real one's."""

    def exposition(self) -> str:
        """Its own numbers, then every family of the capture that it does not render."""
        own = super().exposition()
        names = {line.split("{")[0].split(" ")[0] for line in own.splitlines()}
        lines = CAPTURE.read_text(encoding="utf-8").splitlines()
        rest = [x for x in lines if x.split("{")[0].split(" ")[0] not in names]
        return own + "\n".join(rest) + "\n"


def measure() -> Sequence[Figure]:
    """Resident memory after a minute each, and the CPU used in it."""
    server = FullServer()
    try:
        with contextlib.ExitStack() as stack:
            log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "server.log"
            family = stack.enter_context(_family())
            stack.enter_context(writer.watching(family, log))
            writing = _writing(family.pid)
            flags = ("--log", str(log))
            watching = stack.enter_context(service(PROFILE, server.url, *flags, model=MODEL))
            if watching.wait(True, READY_DEADLINE_S) is None:
                watching.wait_ready()
            idle = _shares(watching, SECONDS)
            with_probes = _probed(watching, SECONDS)
            over = threading.Event()
            threading.Thread(target=_traffic, args=(server, over), daemon=True).start()
            busy = _shares(watching, SECONDS)
            over.set()
            memory = psutil.Process(watching.process.pid).memory_info().rss / 1e6
            size = len(server.exposition())
    finally:
        server.down()
    interval = recipe.load().profile(PROFILE).health.scrape_interval_s
    measured = {"idle server": idle, "busy server": busy, "idle, with probes": with_probes}
    measured[WRITER] = [writing]
    worst = max(statistics.mean(idle), statistics.mean(busy))
    return [
        Figure(
            name="footprint",
            title="CPU share and memory of the service",
            how=(
                f"`python3 -m healthcheck serve --profile {PROFILE}` on a local server whose "
                f"/metrics has the length of a real one ({size / 1000:.0f} kB), scraped every "
                f"{interval:.0f} s as by default, after the gate; {SECONDS} s each. With probes: "
                "/readyz, /livez/engine and /metrics asked every second as well. It reads the vital "
                f"signs of a server of {RANKS} ranks (sleeping processes of vLLM's titles); what "
                "writes them, beside the server, takes its share of a core there."
            ),
            columns=("server", "CPU, mean of a core", "most in 10 s"),
            rows=tuple(
                (name, f"{statistics.mean(s):.2f} %", f"{max(s):.2f} %")
                for name, s in measured.items()
            ),
            plot=Strip(
                "CPU, each dot 10 s",
                "% of a core",
                tuple((name, tuple(s)) for name, s in measured.items()),
                goal=CPU_GOAL,
                goal_label="goal 1 %",
            ),
            goals=(
                Goal(
                    f"<= {MEMORY_GOAL_MB:.0f} MB resident",
                    f"{memory:.1f} MB",
                    memory <= MEMORY_GOAL_MB,
                ),
                Goal("<= 1 % of a core at the default scrape", f"{worst:.2f} %", worst <= CPU_GOAL),
                Goal(
                    "<= 1 % of a core to write the signs", f"{writing:.2f} %", writing <= CPU_GOAL
                ),
            ),
            notes=(f"Resident memory after {3 * SECONDS} s: {memory:.1f} MB.",),
            raw={"memory_mb": memory, "cpu_percent": measured},
        )
    ]


@contextlib.contextmanager
def _family() -> Iterator[subprocess.Popen[bytes]]:
    """Processes with the titles of a server of eight ranks; all of them sleep."""
    names = ("EngineCore", *(f"Worker_TP{rank}" for rank in range(RANKS)))
    script = "\n".join(f"exec -a VLLM::{name} sleep 1000 &" for name in names)
    started = subprocess.Popen(["bash", "-c", f"{script}\nwait"], start_new_session=True)
    try:
        yield started
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def _writing(pid: int) -> float:
    """Percent of a core that looking at these processes takes, and writing it down."""
    gatherer = Gatherer(pid, time.monotonic)
    before = time.thread_time()
    for _ in range(LOOKS):
        dump(gatherer.look())
    return 100 * (time.thread_time() - before) / LOOKS / INTERVAL_S


def _shares(watching: Service, seconds: int) -> list[float]:
    """Percent of a core used in each 10 s."""
    process, shares = psutil.Process(watching.process.pid), []
    for _ in range(seconds // 10):
        before, began = process.cpu_times(), time.monotonic()
        time.sleep(10)
        after = process.cpu_times()
        used = after.user + after.system - before.user - before.system
        shares.append(100 * used / (time.monotonic() - began))
    return shares


def _probed(watching: Service, seconds: int) -> list[float]:
    over = threading.Event()

    def ask() -> None:
        import requests

        while not over.wait(1.0):
            for path in ("/readyz", "/livez/engine", "/metrics"):
                requests.get(watching.url + path, timeout=10)

    threading.Thread(target=ask, daemon=True).start()
    try:
        return _shares(watching, seconds)
    finally:
        over.set()


def _traffic(server: ScriptedServer, over: threading.Event) -> None:
    while not over.wait(1.0):
        server.serve_traffic()
