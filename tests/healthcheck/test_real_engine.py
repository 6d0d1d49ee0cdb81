"""The health service against real vLLM 0.27.1, speculating on the CPU.

vLLM's own /health never sees a hang; these tests show that /readyz does.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
import uvicorn

from deploy.door import OPEN
from deploy.rehearsal.shim.dspark_rehearsal.faults import BATON, HANG_IN_DRAFT
from healthcheck.client import Client, Secret
from healthcheck.flights import model, recorder, stacks
from healthcheck.flights.beside import beside as flight_of
from healthcheck.flights.newest import Flights
from healthcheck.service import app as service
from healthcheck.service import settings
from healthcheck.service.loop import Loop
from healthcheck.service.teller import Teller
from healthcheck.service.voice import to_stderr
from healthcheck.signs.file import Beside
from healthcheck.verdict import State
from healthcheck.worker import Worker
from tests.support import tools
from tests.support.rehearsal_server import ENGINE_CORE, MODEL, WORKER, RehearsalServer
from tests.support.waiting import until

pytestmark = pytest.mark.real

# Generous: the gate's first generation is interpreted Triton on a machine that tests share. How soon
# a fault shows is measured by tests/bench and, in looks, by the scenarios.
PATIENCE_S = 400.0
KEY = "sk-of-the-test"


@dataclass
class Watched:
    """A real engine and the health service that watches it."""

    engine: RehearsalServer
    loop: Loop
    url: str
    hang: Path  # a file: while it is there the draft of the next request hangs, asleep
    sees: threading.Event  # the vital signs; cleared, the service has HTTP alone

    def get(self, path: str) -> requests.Response:
        return requests.get(self.url + path, timeout=30)

    def wait(self, true: Callable[[], bool]) -> None:
        """Until it is true."""
        until(true, within_s=PATIENCE_S, why=lambda: self.loop.snapshot.verdict.line)

    def waits(self, last: Path | None) -> dict[str, str]:
        """What each process waited for by its name, in the first flight after `last`."""
        self.wait(lambda: self.flight() not in (None, last))
        found = flight_of(self.engine.log)
        assert found is not None
        return {line.split()[0]: line for line in found.waits}

    def flight(self) -> Path | None:
        """The archive that was kept last."""
        kept = model.listed(self.engine.log.with_name(model.FOLDER))
        return kept[0].path if kept else None

    def wait_ready(self) -> None:
        self.wait(lambda: self.get("/readyz").status_code == 200)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("engine")
    log, trigger = folder / "server.log", folder / "hang"
    rehearsal = RehearsalServer(log, key=KEY, fault=HANG_IN_DRAFT, trigger=trigger)
    with (
        pytest.MonkeyPatch.context() as patch,
        rehearsal as engine,
        recorder.recording(engine.process, log, {"VLLM_API_KEY": KEY}),
    ):
        patch.setenv("PATH", f"{Path(tools.find('py-spy')).parent}:{os.environ['PATH']}")
        patch.setattr(recorder, "QUIET_S", 0.0)  # each drill is recorded
        for limit in ("PLAIN_S", "NATIVE_S", "NATIVE_TOGETHER_S"):
            patch.setattr(stacks, limit, PATIENCE_S)
        made = settings.make("rehearsal", target=engine.url, model=MODEL)
        beside, sees = Beside(log), threading.Event()
        sees.set()
        client = Client(engine.url, key=Secret(KEY))
        files = Worker("files")
        loop = Loop(
            client,
            made.policy,
            signs=lambda: beside() if sees.is_set() else None,
            flights=Flights(log, files),
        )
        loop.on_turn(Teller(log, lambda: loop.snapshot, files, to_stderr).turn)
        sock = service.listen("127.0.0.1", 0)
        server = uvicorn.Server(service.configured(service.app(loop, made)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        loop.start()
        try:
            url = f"http://127.0.0.1:{sock.getsockname()[1]}"
            yield Watched(engine, loop, url, trigger, sees)
        finally:
            loop.stop()
            server.should_exit = True
            thread.join(30)
            sock.close()


def test_the_gate_passes_on_a_healthy_engine(watched: Watched) -> None:
    """Every check of the gate is good on the real server, speculation included."""
    watched.wait_ready()
    findings = watched.get("/report").json()["gate"]["findings"]
    checks = {f["check"]: f["outcome"] for step in findings.values() for f in step}
    assert set(checks) == {
        "real tokens",
        "variety",
        "logprobs",
        "sampling",
        "drafting",
        "second seed",
        "apart",
    }
    assert set(checks.values()) == {"good"}


def test_without_the_key_every_path_of_the_server_is_shut(watched: Watched) -> None:
    """Each route that this vLLM has, by its own list, answers a stranger 401, but the open ones;
    and /invocations, which vLLM itself leaves open, generates for who has the key."""
    watched.wait_ready()
    url, key = watched.engine.url, {"Authorization": f"Bearer {KEY}"}
    routes = requests.get(f"{url}/openapi.json", headers=key, timeout=30).json()["paths"]
    assert {"/invocations", "/scale_elastic_ep", "/v1/completions", "/tokenize"} <= set(routes)
    answers = {
        (method, path): requests.request(method, url + path, json={}, timeout=30).status_code
        for path, methods in routes.items()
        for method in methods
    }
    shut = {path for (_, path), status in answers.items() if status == 401}
    assert set(routes) - shut == OPEN
    assert requests.get(f"{url}/openapi.json", timeout=30).status_code == 401
    asked = {"model": MODEL, "prompt": "the water is", "max_tokens": 2, "seed": 1}
    answer = requests.post(f"{url}/invocations", json=asked, headers=key, timeout=PATIENCE_S)
    assert answer.json()["usage"]["completion_tokens"] == 2


def test_a_canary_keeps_an_idle_engine_proved(watched: Watched) -> None:
    """Idle, the service asks a canary of its own, and it passes."""
    watched.wait_ready()

    def canary() -> bool:
        return watched.loop.snapshot.generations.get("canary/good", 0) > 0

    watched.wait(canary)
    assert watched.get("/readyz").status_code == 200


def test_a_stopped_engine_is_seen_though_vllm_says_healthy(watched: Watched) -> None:
    """EngineCore SIGSTOPped: /readyz 503 while /health is 200; its stack is kept, and it stays
    stopped until SIGCONT brings it back."""
    watched.wait_ready()
    last = watched.flight()
    core = watched.engine.pid_of(ENGINE_CORE)
    os.kill(core, signal.SIGSTOP)
    try:
        watched.wait(lambda: "process.stopped" in watched.get("/readyz").text)
        assert watched.get("/readyz").status_code == 503
        assert watched.engine.health() == 200
        assert watched.get("/livez/engine").status_code == 200
        assert " is stopped by a signal, in " in watched.waits(last)["EngineCore"]
        assert "process.stopped" in watched.get("/readyz").text
        watched.wait(lambda: watched.get("/report").json()["flight"] is not None)
        told = watched.get("/report").json()["flight"]
        assert (told["why"], told["reason"]) == ("NOT_READY", "process.stopped")
    finally:
        os.kill(core, signal.SIGCONT)
    watched.wait_ready()


def test_a_stop_in_mid_stream_is_seen(watched: Watched) -> None:
    """With a user's request running and no signs seen, the frozen counters give the stop away."""
    watched.wait_ready()
    watched.sees.clear()
    answers: list[int] = []

    def ask() -> None:
        # Longer than two looks, even where nothing else runs.
        answer = watched.engine.complete(max_tokens=800, timeout=PATIENCE_S)
        answers.append(answer.status_code)

    asking = threading.Thread(target=ask)
    asking.start()
    watched.wait(
        lambda: any(e.sample.running for e in watched.loop.snapshot.memory.engines.values())
    )
    core = watched.engine.pid_of(ENGINE_CORE)
    os.kill(core, signal.SIGSTOP)
    try:
        watched.wait(lambda: watched.get("/readyz").status_code == 503)
        assert "progress.none" in watched.get("/readyz").text
    finally:
        os.kill(core, signal.SIGCONT)
        watched.sees.set()
    watched.wait_ready()
    asking.join(PATIENCE_S)
    assert answers == [200]


@pytest.mark.parametrize(
    ("how", "waits"),
    [
        ("sleep", "sleeps, in _hang_in_draft"),
        (BATON, "waits for a lock file"),
    ],
)
def test_a_deadlock_is_told_from_a_compile_by_its_sleep(
    watched: Watched, how: str, waits: str
) -> None:
    """A draft that never comes back while EngineCore and worker sleep: named as a deadlock, not by
    the budget, and the stacks say who waits for whom; once it goes on the server is ready again and
    the request is answered."""
    watched.wait_ready()
    last = watched.flight()
    watched.hang.write_text(how)
    try:
        asking = threading.Thread(
            target=watched.engine.complete, kwargs={"timeout": PATIENCE_S}, daemon=True
        )
        asking.start()
        watched.wait(lambda: "progress.deadlock" in watched.get("/readyz").text)
        assert watched.get("/readyz").status_code == 503
        assert "EngineCore" in watched.get("/readyz?verbose").text
        assert watched.engine.health() == 200
        told = watched.waits(last)
        assert waits in told["Worker"]
        assert "shared-memory queue for an answer of its workers" in told["EngineCore"]
        assert "runs its event loop" in told["APIServer"]
    finally:
        watched.hang.unlink()
    watched.wait_ready()
    asking.join(PATIENCE_S)
    assert not asking.is_alive()


def test_a_killed_worker_is_out_of_service(watched: Watched) -> None:
    """The worker SIGKILLed: /readyz 503 with the signal's name, and DEAD afterwards.
    Runs last: it ends the server."""
    watched.wait_ready()
    os.kill(watched.engine.pid_of(WORKER), signal.SIGKILL)
    watched.wait(lambda: "process.died (Worker, pid " in watched.get("/readyz?verbose").text)
    said = watched.get("/readyz?verbose").text
    # Before Linux 6.15 the worker's parent may be quicker to ask how it ended.
    keeps = tuple(int(n) for n in re.findall(r"\d+", os.uname().release)[:2]) >= (6, 15)
    assert ": SIGKILL" in said or (not keeps and ": in an unknown way" in said)
    assert watched.get("/readyz").status_code == 503
    watched.wait(lambda: watched.loop.snapshot.verdict.state is State.DEAD)
    assert watched.get("/livez/engine").status_code == 503
    assert watched.engine.wait_exit() == 0  # which is why it must be restarted always
