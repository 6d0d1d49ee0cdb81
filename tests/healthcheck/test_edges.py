"""What goes wrong in the service itself: at the edges of its threads, on stderr, at its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from deploy.rehearsal.supervisor import free_port
from healthcheck.client import Client
from healthcheck.client.cancel import Cancel
from healthcheck.judge import Completion, Finding
from healthcheck.service import app as service
from healthcheck.service import loop as loops
from healthcheck.service import settings
from healthcheck.service.generate import Generator
from healthcheck.service.loop import Loop
from healthcheck.verdict import Generation, Outstanding, Policy, State, Want
from healthcheck.worker import Worker
from tests.support.inline_runner import InlineRunner
from tests.support.running_service import QUICK, running
from tests.support.scripted_server import MODEL, ScriptedServer, scripted_server
from tests.support.waiting import PATIENCE_S, until

REPOSITORY = Path(__file__).parents[2]


class Failing:
    """A runner that has an error of its own at every poll while `broken`."""

    def __init__(self, tick: Callable[[], None] = lambda: None) -> None:
        self.broken = True
        self._tick = tick

    def start(self, want: Want, model: str, now: float) -> None:
        """Run none."""

    def poll(self, now: float) -> tuple[Generation | None, Outstanding | None]:
        """Nothing, or the error."""
        self._tick()
        if self.broken:
            raise OverflowError("math range error")
        return None, None

    def stop(self) -> None:
        """Nothing runs."""

    def end(self) -> None:
        """Nothing runs."""


@contextlib.contextmanager
def looping(loop: Loop) -> Iterator[Loop]:
    loop.start()
    try:
        yield loop
    finally:
        loop.stop()


def test_an_error_in_a_turn_is_counted_said_and_shown_and_the_next_turn_comes() -> None:
    """Whatever a turn raises: one line, one count, the reason service.error; then it goes on."""
    said: list[str] = []
    runner = Failing()
    with scripted_server() as target:
        loop = Loop(Client(target.url), Policy(QUICK, MODEL), runner=runner, say=said.append)
        with looping(loop):
            until(lambda: loop.snapshot.errors.get("turn", 0) >= 2)
            notes = [str(n) for n in loop.snapshot.verdict.notes]
            assert notes[-1].startswith("service.error (turn: OverflowError: math range error (")
            runner.broken = False
            until(lambda: loop.snapshot.turns > 0)
            assert "service.error" not in loop.snapshot.verdict.line
            assert not loop.over
    assert said[0].startswith("health: service.error (turn: OverflowError: math range error (")


def test_a_loop_whose_every_turn_fails_ends() -> None:
    """After the longest time that a turn may take the loop gives up, and says so."""
    now = [0.0]
    said: list[str] = []

    def tick() -> None:
        now[0] += loops.TURN_LIMIT_S / 2

    with scripted_server() as target:
        loop = Loop(
            Client(target.url),
            Policy(QUICK, MODEL),
            clock=lambda: now[0],
            runner=Failing(tick),
            say=said.append,
        )
        with looping(loop):
            until(lambda: loop.over)
    assert said[-1].endswith("the service ends")
    assert loop.snapshot.errors == {"turn": 2}
    assert not loop.over  # it was asked to, later on


def test_a_service_whose_loop_is_over_ends_with_an_error_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`serve` returns False then, of which the command makes a code that is not 0."""

    def broken(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(loops, "TURN_LIMIT_S", 0.0)
    monkeypatch.setattr(loops.Loop, "turn", broken)
    with scripted_server() as target:
        made = settings.make("rehearsal", target=target.url, port=free_port())
        assert service.serve(made, service.listen(made.host, made.port)) is False


class Faulty(Generator):
    """Every generation ends in an error of our own."""

    asked = 0

    def _run(
        self, want: Want, model: str, cancel: Cancel
    ) -> tuple[tuple[Finding, ...], Completion | None]:
        self.asked += 1
        raise OverflowError("math range error")


def test_an_error_in_a_generation_is_shown_and_the_next_one_waits_ever_longer() -> None:
    """Ten minutes of turns, one a second: no more than a handful of generations are asked for."""
    with scripted_server() as target:
        policy = Policy(QUICK, MODEL)
        generator = Faulty(Client(target.url), policy)
        runner = InlineRunner(generator)
        loop = Loop(
            Client(target.url), policy, clock=lambda: 0.0, runner=runner, say=lambda _: None
        )
        for second in range(600):
            loop.turn(float(second))
        assert 5 < generator.asked < 20
        assert loop.snapshot.errors == {"generation": generator.asked}
        assert "service.error" in loop.snapshot.verdict.line
        assert loop.snapshot.memory.state is State.SMOKE


def test_a_generation_that_is_refused_is_not_asked_for_at_once_again() -> None:
    """A server that answers each canary with 401 in no time gets no storm of them."""
    with running() as it:
        it.wait_for(State.READY)
        before = len(it.target.completions)
        it.target.on_completion = lambda _: (401, b"")
        turns = it.loop.snapshot.turns
        it.wait(lambda: it.loop.snapshot.turns > turns + 30)
        asked = len(it.target.completions) - before
        assert asked <= it.loop.snapshot.turns - turns + 1


def test_a_limit_of_threads_that_is_reached_later_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads are kept: with none to be had any more the loop turns, canaries are answered."""
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if "process_request_thread" not in thread.name:  # those of the server under test
            raise RuntimeError("can't start new thread")
        start(thread)

    with running() as it:
        it.wait_for(State.READY)
        monkeypatch.setattr(threading.Thread, "start", refused)
        turns, made = it.loop.snapshot.turns, it.loop.snapshot.memory.generations
        it.wait(lambda: it.loop.snapshot.memory.generations > made + 2)
        assert it.loop.snapshot.turns > turns + 2
        assert it.loop.snapshot.errors == {}
        assert it.loop.snapshot.verdict.state is State.READY


def test_a_dead_verdict_that_nobody_renews_kills_no_engine() -> None:
    """With the loop hung /livez and /readyz fail and /livez/engine does not, whatever it said."""
    health = replace(QUICK, dead_after_s=0.1)
    with running(health=health) as it:
        it.wait_for(State.READY)
        it.target.down()
        it.wait_for(State.DEAD)
        assert it.get("/livez/engine").status_code == 503
        it.loop.stop()
        later = it.loop.clock() + 1000
        it.loop._clock = lambda: later
        assert it.get("/livez/engine").status_code == 200
        assert it.get("/livez").status_code == it.get("/readyz").status_code == 503


def test_a_drain_is_seen_at_once_while_the_server_hangs() -> None:
    """/readyz says 503 with the drain's answer, not after the turn that waits for the server."""
    with running(health=replace(QUICK, probe_timeout_s=1000.0)) as it:
        it.wait_for(State.READY)
        left = threading.Event()
        answer = it.target.answer
        it.target.answer = lambda *a: (left.wait(PATIENCE_S) and None) or answer(*a)  # type: ignore[method-assign]
        turns = it.loop.snapshot.turns
        it.loop.drain()
        told = it.get("/readyz")
        assert (told.status_code, told.text) == (503, "DRAINING operator.drain\n")
        assert it.get("/livez/engine").status_code == 200
        assert it.loop.snapshot.turns <= turns + 1
        left.set()


def test_a_worker_outlives_what_it_is_handed() -> None:
    """An error, even one that would end a thread, goes to whoever waits; then the next call runs."""
    worker = Worker("of the test")

    def leave() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        worker.do(leave).result(PATIENCE_S)
    assert worker.do(lambda: 7).result(PATIENCE_S) == 7
    worker.end()


# --- stderr ---------------------------------------------------------------------------------------


def full_pipe() -> tuple[int, int]:
    """A pipe that nobody reads, with no room left."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    return reader, writer


def gone_reader() -> tuple[int, int]:
    """A pipe whose reader has left."""
    reader, writer = os.pipe()
    os.close(reader)
    return -1, writer


def full_disk() -> tuple[int, int]:
    """A device without space."""
    return -1, os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize("broken", [full_pipe, gone_reader, full_disk])
def test_a_stderr_that_takes_nothing_stops_nothing(broken: Callable[[], tuple[int, int]]) -> None:
    """With its stderr full, closed or out of space the service gets READY, sees the server go and
    come, and ends with 0 on SIGTERM."""
    port = free_port()
    reader, writer = broken()
    with scripted_server() as target:
        process = _serve(target, port, writer)
        os.close(writer)
        try:
            _wait_for(port, 200)
            target.down()
            _wait_for(port, 503)
            target.up()
            _wait_for(port, 200)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.wait()
            if reader >= 0:
                os.close(reader)


def _serve(target: ScriptedServer, port: int, stderr: int) -> subprocess.Popen[bytes]:
    options = ["--profile", "rehearsal", "--target", target.url, "--model", MODEL, "--drain", "0.5"]
    command = [sys.executable, "-m", "healthcheck", "serve", *options, "--port", str(port)]
    environment = {k: v for k, v in os.environ.items() if k != "DSPARK_PROFILE"}
    return subprocess.Popen(command, cwd=REPOSITORY, stderr=stderr, env=environment)


def _wait_for(port: int, status: int) -> None:
    url = f"http://127.0.0.1:{port}/readyz"
    until(lambda: requests.get(url, timeout=PATIENCE_S).status_code == status)
