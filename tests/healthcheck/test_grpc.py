"""grpc.health.v1 over real channels: the same answers as the HTTP probes, and changes as they come."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.recipe import Health
from healthcheck.client import Client
from healthcheck.service.generate import Generator
from healthcheck.service.grpc_health import GrpcHealth
from healthcheck.service.loop import Loop
from healthcheck.service.settings import SettingsError
from healthcheck.verdict import Policy, State
from tests.support.inline_runner import InlineRunner
from tests.support.scripted_server import MODEL, ScriptedServer, scripted_server

REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 60.0
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Watched:
    """A loop at times of the test's own, behind a gRPC server, and a channel to it."""

    def __init__(self, target: ScriptedServer) -> None:
        self.target = target
        self.now = 0.0
        client, policy = Client(target.url), Policy(Health(), MODEL)
        runner = InlineRunner(Generator(client, policy))
        self.loop = Loop(client, policy, clock=lambda: self.now, runner=runner, say=lambda _: None)
        self.server = GrpcHealth(self.loop, "127.0.0.1", 0)
        self.server.start()
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.server.port}")
        self.health = health_pb2_grpc.HealthStub(self.channel)

    def turn(self) -> State:
        self.now += 5.0
        return self.loop.turn(self.now).verdict.state

    def turn_until(self, state: State) -> None:
        assert any(self.turn() is state for _ in range(100)), self.loop.snapshot.verdict.line

    def check(self, service: str = "") -> int:
        request = health_pb2.HealthCheckRequest(service=service)
        return int(self.health.Check(request, timeout=PATIENCE_S).status)

    def all(self) -> list[int]:
        return [self.check(name) for name in ("", "startup", "readiness", "liveness")]


@contextlib.contextmanager
def watched() -> Iterator[Watched]:
    with scripted_server() as target:
        it = Watched(target)
        try:
            yield it
        finally:
            it.channel.close()
            it.server.stop()


def test_the_services_answer_as_the_probes_do() -> None:
    """LOADING serves liveness only, READY all of them, DEAD none."""
    with watched() as it:
        assert it.all() == [NOT_SERVING, NOT_SERVING, NOT_SERVING, SERVING]
        it.turn_until(State.READY)
        assert it.all() == [SERVING] * 4
        it.target.health = (503, b"")
        it.turn_until(State.DEAD)
        assert it.all() == [NOT_SERVING] * 4


def test_an_unknown_service_is_not_found() -> None:
    """A service that does not exist is NOT_FOUND, as the protocol says."""
    with watched() as it, pytest.raises(grpc.RpcError) as refused:
        it.check("vllm")
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_loop_that_stands_still_is_not_ready_and_no_fault_of_the_engine() -> None:
    """Without a turn for a minute readiness is gone, and liveness stays."""
    with watched() as it:
        it.turn_until(State.READY)
        it.now += 120.0
        assert it.all() == [NOT_SERVING, NOT_SERVING, NOT_SERVING, SERVING]


def test_watch_tells_each_change_once() -> None:
    """A watcher gets the present status, then one message a change, then the end."""
    with watched() as it:
        request = health_pb2.HealthCheckRequest(service="readiness")
        watch = it.health.Watch(request, timeout=PATIENCE_S)
        assert next(watch).status == NOT_SERVING
        it.turn_until(State.READY)
        assert next(watch).status == SERVING
        it.loop.drain()
        it.turn()
        assert next(watch).status == NOT_SERVING
        watch.cancel()


def test_a_port_that_is_taken_is_one_line() -> None:
    """Two services cannot share a port: the second is refused with the setting and the fix."""
    with watched() as it, pytest.raises(SettingsError, match=r"--grpc-port: got \d+; it cannot"):
        GrpcHealth(it.loop, "127.0.0.1", it.server.port)


def test_without_the_extra_the_setting_is_refused_in_one_line() -> None:
    """A Python without the package names it and the command that installs it."""
    blocked = (
        "import sys; sys.modules['grpc_health'] = None; "
        "from healthcheck.__main__ import main; sys.exit(main())"
    )
    ran = subprocess.run(
        [
            *(sys.executable, "-c", blocked, "serve", "--profile", "rehearsal"),
            *("--port", "0", "--grpc-port", "18999"),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith("healthcheck: --grpc-port: got 18999; needs grpc_health")
    assert "pip install" in ran.stderr and len(ran.stderr.splitlines()) == 1
