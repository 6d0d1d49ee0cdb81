"""Waiting until a server has nothing to do, before it is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from deploy.rehearsal.supervisor import free_port
from healthcheck.__main__ import main
from healthcheck.client import Client
from healthcheck.service import idle
from healthcheck.verdict import State
from tests.support.running_service import running
from tests.support.scripted_server import ScriptedServer, scripted_server

BUDGET_S = 100.0


def nobody() -> Client:
    """Of an address where nothing listens."""
    return Client(f"http://127.0.0.1:{free_port()}")


class Stop:
    """One wait before a stop, on a clock that only its own pauses move."""

    def __init__(self, target: ScriptedServer, beside: Client | None = None) -> None:
        self.target = target
        self.beside = beside or nobody()
        self.spent = 0.0
        self.said: list[str] = []

    def wait(self, each_second: Callable[[float], None] = lambda _: None) -> tuple[int, str]:
        """Play it; `each_second` moves the server."""

        def sleep(seconds: float) -> None:
            self.spent += seconds
            each_second(self.spent)

        return idle.wait(
            Client(self.target.url),
            self.beside,
            at_least_s=10.0,
            budget_s=BUDGET_S,
            say=self.said.append,
            clock=lambda: self.spent,
            sleep=sleep,
        )


def test_the_last_answer_is_waited_for() -> None:
    """As long as something runs or waits on any engine; each change is told once."""
    with scripted_server() as target:
        engine = target.engines["0"]
        engine.running, engine.waiting = 2, 1

        def work(now: float) -> None:
            engine.waiting = float(now < 20)
            engine.running = 2.0 if now < 30 else float(now < 42)

        stop = Stop(target)
        assert stop.wait(work) == (idle.IDLE, "idle: after 43 s")
    assert stop.said == [
        *("waiting: 2 running, 1 waiting", "waiting: 2 running, 0 waiting"),
        *("waiting: 1 running, 0 waiting", "waiting: 0 running, 0 waiting"),
    ]


def test_who_was_told_late_is_served() -> None:
    """An idle server is not stopped before proxies have heard of it; what they send counts."""
    with scripted_server() as target:

        def late(now: float) -> None:
            target.engines["0"].running = float(9 <= now < 15)

        stop = Stop(target)
        assert stop.wait() == (idle.IDLE, "idle: after 10 s")
        stop = Stop(target)
        assert stop.wait(late) == (idle.IDLE, "idle: after 16 s")


@pytest.mark.parametrize(
    ("metrics", "code", "said"),
    [
        (None, idle.BUSY, "given up after 100 s: 1 running, 0 waiting"),
        ((500, b""), idle.UNKNOWN, "given up after 100 s: /metrics tells nothing"),
        ((200, b""), idle.UNKNOWN, "given up after 100 s: /metrics shows no engine"),
    ],
)
def test_the_budget_ends_it(metrics: tuple[int, bytes] | None, code: int, said: str) -> None:
    """A request without end, or counters that cannot be had, hold a stop up no longer."""
    with scripted_server() as target:
        target.engines["0"].running = 1
        target.metrics = metrics
        got, line = Stop(target).wait()
    assert got == code and line.startswith(said)


def test_a_server_that_is_gone_is_not_waited_for() -> None:
    """Nothing listens, so nothing runs."""
    with scripted_server() as target:
        target.down()
        stop = Stop(target)
        assert stop.wait() == (idle.IDLE, "idle: no server is there")
    assert stop.spent == 0


def test_an_engine_that_is_down_is_not_waited_for() -> None:
    """The health service beside it says so: its requests will never end."""
    with running() as it:
        it.wait_for(State.READY)
        it.target.engines["0"].running = 1
        it.target.health = (503, b"")
        it.wait_for(State.DEAD)
        stop = Stop(it.target, Client(it.url))
        code, line = stop.wait()
    assert (code, line) == (idle.BUSY, "given up: DEAD server.engine_dead")
    assert stop.spent == 0


def test_the_command_says_its_last_word_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    """As a hook runs it: exit code, one line; a time that cannot be is refused."""
    with scripted_server() as target:
        options = ["--profile", "mi355x", "--target", target.url, "--url", nobody().base_url]
        began = time.monotonic()
        assert main(["idle", *options, "--at-least", "0"]) == 0
        assert time.monotonic() - began < BUDGET_S
        assert capsys.readouterr().out.startswith("idle: after")
        target.engines["0"].running = 1
        assert main(["idle", *options, "--timeout", "0"]) == 1
        assert capsys.readouterr().out == "given up after 0 s: 1 running, 0 waiting\n"
        assert main(["idle", *options, "--timeout", "-1"]) == 2
    assert "--timeout: got -1.0; give seconds" in capsys.readouterr().err
