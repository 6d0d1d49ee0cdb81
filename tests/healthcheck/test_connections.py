"""Who connects and says nothing, says half, or takes no answer keeps no probe from its own."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
import uvicorn
from starlette.applications import Starlette

from deploy.rehearsal.supervisor import free_port
from healthcheck.service import app as service
from healthcheck.service import connections
from healthcheck.service.grpc_health import GrpcHealth
from tests.support.running_service import running
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[2]
HALF = b"GET /readyz HTTP/1.1\r\nX: "
WHOLE = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"


@contextlib.contextmanager
def crowd(port: int, size: int) -> Iterator[list[socket.socket]]:
    """So many connections to a port, silent so far."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
            for _ in range(size)
        ]


def is_open(connection: socket.socket) -> bool:
    """Whether the other side has not ended it."""
    connection.setblocking(False)
    try:
        return connection.recv(4096) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


@pytest.mark.parametrize(
    "said", [(), (HALF,), (WHOLE, HALF)], ids=["nothing", "half", "one, then half"]
)
def test_a_question_that_does_not_come_is_not_waited_for(
    said: Sequence[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that are silent, or stop in the middle of a head, first or later, are cut."""
    monkeypatch.setattr(connections, "EXCHANGE_S", 3600.0 if WHOLE in said else 0.5)
    with running(start=False) as it, crowd(urlsplit(it.url).port or 0, 20) as held:
        monkeypatch.setattr(connections, "EXCHANGE_S", 0.5)
        for connection in held:
            for part in said:
                with contextlib.suppress(OSError):  # cut already, on a slow machine
                    connection.sendall(part)
                if part is WHOLE:
                    assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        until(lambda: not any(is_open(connection) for connection in held))


def test_an_answer_that_nobody_takes_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that asks and asks and reads nothing does not hold its connection."""
    monkeypatch.setattr(connections, "EXCHANGE_S", 0.5)
    with running(start=False) as it:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", urlsplit(it.url).port))
            deaf.settimeout(0.2)

            def cut() -> bool:
                try:
                    deaf.send(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 100)
                except TimeoutError:
                    return False  # both buffers are full: it is waited for
                except OSError:
                    return True
                return False

            until(cut)
        assert it.get("/livez").status_code == 200


def test_of_too_many_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many come at once and stay, few are kept, and the next one is answered."""
    monkeypatch.setattr(connections, "MOST", 10)
    monkeypatch.setattr(connections, "EXCHANGE_S", 3600.0)
    server = uvicorn.Server(service.configured(Starlette()))
    with service.listen("127.0.0.1", 0) as sock, crowd(sock.getsockname()[1], 60) as held:
        # All wait already when the first is accepted.
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        try:
            until(
                lambda: [is_open(connection) for connection in held] == [False] * 50 + [True] * 10
            )
            url = f"http://127.0.0.1:{sock.getsockname()[1]}/"
            assert requests.get(url, timeout=PATIENCE_S).status_code == 404
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)


def test_each_answer_begins_a_new_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that keeps its connection and keeps asking is not cut for what it asked before."""
    made: list[connections.Connection] = []
    really = connections.Connection.connection_made

    def connection_made(self: connections.Connection, transport: asyncio.Transport) -> None:
        really(self, transport)
        made.append(self)

    monkeypatch.setattr(connections.Connection, "connection_made", connection_made)
    with running(start=False) as it, crowd(urlsplit(it.url).port or 0, 1) as held:
        held[0].sendall(WHOLE)
        assert held[0].recv(4096).startswith(b"HTTP/1.1 200")
        first = made[0].turn
        held[0].sendall(WHOLE)
        assert held[0].recv(4096)
        until(lambda: made[0].turn > first)
    assert len(made) == 1


@pytest.mark.parametrize("said", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"])
def test_grpc_waits_no_longer(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the port of grpc.health.v1, too, who is silent or greets and asks nothing is cut."""
    monkeypatch.setattr(connections, "EXCHANGE_S", 1.0)
    with running(start=False) as it:
        grpc = GrpcHealth(it.loop, "127.0.0.1", free_port())
        grpc.start()
        try:
            with crowd(grpc.port, 10) as held:
                for connection in held:
                    with contextlib.suppress(OSError):
                        connection.sendall(said)
                until(lambda: not any(is_open(connection) for connection in held))
        finally:
            grpc.stop()


def test_with_few_files_left_the_probes_still_answer() -> None:
    """A process that may open 256 files answers its probes while 300 connections are held."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/livez"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    command = [sys.executable, "-m", "healthcheck", "serve", "--profile", "rehearsal"]
    with subprocess.Popen(
        [*command, "--target", "http://127.0.0.1:1", "--port", str(port)],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
        preexec_fn=limit,
    ) as process:
        try:

            def answers() -> bool:
                try:
                    return requests.get(url, timeout=PATIENCE_S).status_code == 200
                except requests.RequestException:
                    return False

            until(answers)
            with crowd(port, 300) as held:
                for connection in held:
                    with contextlib.suppress(OSError):
                        connection.sendall(HALF)
                assert all(answers() for _ in range(20))
        finally:
            process.kill()
