"""The client, against real local servers that misbehave."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from healthcheck.client import ERROR_BYTES, Client, Secret
from healthcheck.client.answers import Answer, Failure, FailureKind
from healthcheck.client.cancel import Cancel
from healthcheck.client.resolver import Resolver
from healthcheck.service import settings
from tests.support.scripted_server import scripted_server
from tests.support.waiting import PATIENCE_S, until

# The contract: an answer ends by its total deadline. The margin is for a loaded machine, and well
# under what an answer would take that does not end by it.
DEADLINE_S = 1.0
MARGIN_S = 60.0

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\nok"

Handler = Callable[[socket.socket, bytes, threading.Event], None]


class RawServer:
    """Hands every connection's request, as bytes, to a handler that writes what it likes."""

    def __init__(self, handler: Handler, whole_head: bool = True) -> None:
        self._handler = handler
        self._end_of_head = b"\r\n\r\n" if whole_head else b""
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.over = threading.Event()
        self.requests: list[bytes] = []
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._sock.getsockname()[1]}"

    def close(self) -> None:
        self.over.set()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        for thread in [self._accepting, *self._threads]:
            thread.join(PATIENCE_S)

    def _accept(self) -> None:
        while not self.over.is_set():
            try:
                connection, _ = self._sock.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(PATIENCE_S)
            request = connection.recv(65536)
            while self._end_of_head not in request:
                chunk = connection.recv(65536)
                if not chunk:
                    return
                request += chunk
            self.requests.append(request)
            self._handler(connection, request, self.over)


@contextlib.contextmanager
def serving(handler: Handler, whole_head: bool = True) -> Iterator[RawServer]:
    server = RawServer(handler, whole_head)
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def full_accept_queue() -> Iterator[tuple[str, int]]:
    """The address of a listener that takes no connection any more, and refuses none."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        yield address


def send(data: bytes) -> Handler:
    return lambda connection, request, over: connection.sendall(data)


def silent(connection: socket.socket, request: bytes, over: threading.Event) -> None:
    over.wait(PATIENCE_S)


def drip(start: bytes) -> Handler:
    def handler(connection: socket.socket, request: bytes, over: threading.Event) -> None:
        connection.sendall(start)
        while not over.wait(0.05):
            connection.sendall(b"x")

    return handler


def drip_headers(connection: socket.socket, request: bytes, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not over.wait(0.05):
        connection.sendall(b"x")


def reset(connection: socket.socket, request: bytes, over: threading.Event) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def flood(connection: socket.socket, request: bytes, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
    block = b"x" * 1_000_000
    for _ in range(100):
        connection.sendall(block)


def get(url: str, deadline_s: float = PATIENCE_S) -> Answer | Failure:
    return Client(url).get("/health", deadline_s=deadline_s)


def test_an_answer_is_returned_whole() -> None:
    """Status, body and content type of a plain answer come back."""
    with serving(send(OK)) as server:
        answer = get(server.url)
    assert isinstance(answer, Answer)
    assert (answer.status, answer.body) == (200, b"ok")


def test_a_closed_port_is_refused() -> None:
    """Nothing listening is told apart from everything else; a server of the tests that is down
    keeps its port, so that nobody else answers there."""
    with scripted_server() as server:
        for _ in range(2):
            server.down()
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", server.port))
            answer = get(server.url)
            assert isinstance(answer, Failure) and answer.kind is FailureKind.REFUSED
            server.up()
            assert isinstance(get(server.url), Answer)


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (send(b""), FailureKind.RESET),
        (reset, FailureKind.RESET),
        (send(b'HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{"half":'), FailureKind.TRUNCATED),
        (
            send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\nhalf"),
            FailureKind.TRUNCATED,
        ),
        (flood, FailureKind.TOO_LARGE),
        (send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), FailureKind.MALFORMED),
    ],
    ids=["closed", "reset", "truncated", "truncated-chunk", "flood", "not-http"],
)
def test_each_misbehaviour_has_its_kind(handler: Handler, kind: FailureKind) -> None:
    """A server's misbehaviour is a Failure of the right kind, never an exception."""
    with serving(handler) as server:
        answer = get(server.url)
    assert isinstance(answer, Failure)
    assert answer.kind is kind, answer


@pytest.mark.parametrize(
    "handler",
    [
        silent,
        drip(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"),
        drip(b"HTTP/1.1 200 OK\r\n\r\n"),
        drip_headers,
    ],
    ids=["silent", "slow-loris-body", "slow-loris-endless", "slow-loris-headers"],
)
def test_the_total_deadline_holds(handler: Handler) -> None:
    """A byte now and then does not extend the deadline."""
    with serving(handler) as server:
        began = time.monotonic()
        answer = get(server.url, DEADLINE_S)
        took = time.monotonic() - began
    assert isinstance(answer, Failure) and answer.kind is FailureKind.TIMEOUT
    assert DEADLINE_S / 2 < took < DEADLINE_S + MARGIN_S


def test_a_full_accept_queue_times_out() -> None:
    """A server that accepts nothing is a time-out, not a refusal."""
    with full_accept_queue() as address:
        client = Client(f"http://127.0.0.1:{address[1]}", connect_timeout_s=DEADLINE_S)
        answer = client.get("/health", deadline_s=2 * DEADLINE_S)
    assert isinstance(answer, Failure) and answer.kind is FailureKind.TIMEOUT


def test_a_redirect_is_not_followed() -> None:
    """The redirect itself is the answer; its target is not asked."""
    with serving(send(OK)) as target:
        location = f"Location: {target.url}/\r\n".encode()
        with serving(
            send(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n" + location + b"\r\n")
        ) as server:
            answer = get(server.url)
        assert isinstance(answer, Answer) and answer.status == 302
        assert target.requests == []


def endless(head: bytes) -> Handler:
    def handler(connection: socket.socket, request: bytes, over: threading.Event) -> None:
        connection.sendall(head)
        while not over.is_set():
            connection.sendall(b"x" * 65536)

    return handler


REDIRECT = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n"


@pytest.mark.parametrize(
    "handler",
    [
        endless(REDIRECT + b"\r\n"),
        send(REDIRECT + b"Content-Encoding: gzip\r\nContent-Length: 9\r\n\r\n\x1f\x8b\x08\x00"),
    ],
    ids=["endless", "half a gzip"],
)
def test_the_body_of_a_redirect_is_not_read(handler: Handler) -> None:
    """Neither without end, nor to be unpacked: the status is the answer."""
    with serving(handler) as server:
        answer = get(server.url)
    assert isinstance(answer, Answer) and (answer.status, answer.body) == (302, b"")


def test_of_an_error_only_the_beginning_is_read() -> None:
    """The status says it; a page without end behind it costs no memory."""
    with serving(endless(b"HTTP/1.1 404 Not Found\r\n\r\n")) as server:
        answer = get(server.url)
    assert isinstance(answer, Answer)
    assert (answer.status, len(answer.body)) == (404, ERROR_BYTES)


def test_a_lookup_that_does_not_end_ends_by_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that hangs holds up no question, nor the next one."""
    release = threading.Event()
    look_up = socket.getaddrinfo

    def hang(host: str, *args: Any, **more: Any) -> Any:
        if host == "hangs.test":
            release.wait(PATIENCE_S)
        return look_up("127.0.0.1" if host == "hangs.test" else host, *args, **more)

    with serving(send(OK)) as server:
        url = server.url.replace("127.0.0.1", "hangs.test")
        monkeypatch.setattr(socket, "getaddrinfo", hang)
        for _ in range(2):
            answer = get(url, 0.2)
            assert isinstance(answer, Failure) and answer.kind is FailureKind.TIMEOUT
        release.set()
        assert isinstance(get(url), Answer)


def test_many_addresses_that_take_nothing_end_by_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The deadline is for all addresses of a name together, not for each."""
    with full_accept_queue() as address:
        many = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address)] * 1000
        monkeypatch.setattr(Resolver, "addresses", lambda *_: many)
        began = time.monotonic()
        answer = Client("http://many.test:1", connect_timeout_s=0.2).get("/", deadline_s=1.0)
        took = time.monotonic() - began
    assert isinstance(answer, Failure) and answer.kind is FailureKind.TIMEOUT
    assert took < 1.0 + MARGIN_S


def drip_handshake(connection: socket.socket, request: bytes, over: threading.Event) -> None:
    connection.sendall(b"\x16\x03\x03\x40\x00")
    while not over.wait(0.05):
        connection.sendall(b"\x02")


def test_a_handshake_that_trickles_ends_by_the_deadline() -> None:
    """TLS is no way around the deadline."""
    with serving(drip_handshake, whole_head=False) as server:
        began = time.monotonic()
        url = server.url.replace("http:", "https:")
        answer = Client(url).get("/", deadline_s=DEADLINE_S)
        took = time.monotonic() - began
    assert isinstance(answer, Failure) and answer.kind is FailureKind.TIMEOUT
    assert took < DEADLINE_S + MARGIN_S


def test_a_refused_handshake_has_its_kind() -> None:
    """https on a port that speaks http is not called a time-out, nor unreachable."""
    with serving(send(OK), whole_head=False) as server:
        answer = get(server.url.replace("http:", "https:"))
    assert isinstance(answer, Failure) and answer.kind is FailureKind.TLS


def test_an_address_of_version_six_is_asked() -> None:
    """Brackets are part of the URL, not of the address."""
    with contextlib.closing(socket.socket(socket.AF_INET6)) as sock:
        try:
            sock.bind(("::1", 0))
        except OSError:
            pytest.skip("this host has no ::1")
        port = sock.getsockname()[1]
    answer = get(f"http://[::1]:{port}")
    assert isinstance(answer, Failure) and answer.kind is FailureKind.REFUSED


def test_a_running_generation_can_be_aborted() -> None:
    """Aborting ends the call at once and closes the connection, which the server sees."""
    closed = threading.Event()

    def handler(connection: socket.socket, request: bytes, over: threading.Event) -> None:
        # the body may come after the head that `request` holds
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(4096):
                pass
        closed.set()

    cancel = Cancel()
    answers: list[Answer | Failure] = []
    with serving(handler) as server:
        client = Client(server.url)

        def ask() -> None:
            answers.append(client.post("/x", {}, deadline_s=PATIENCE_S, cancel=cancel))

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: server.requests)
        cancel.abort()
        asking.join(PATIENCE_S)
        assert not asking.is_alive()
        assert closed.wait(PATIENCE_S)
    assert isinstance(answers[0], Failure) and answers[0].kind is FailureKind.ABORTED


def test_an_abort_before_the_start_is_kept() -> None:
    """A generation that is cancelled before it connects does not run."""
    cancel = Cancel()
    cancel.abort()
    with serving(silent) as server:
        answer = Client(server.url).post("/x", {}, deadline_s=PATIENCE_S, cancel=cancel)
    assert isinstance(answer, Failure) and answer.kind is FailureKind.ABORTED


def test_the_key_goes_to_no_open_path_and_shows_nowhere() -> None:
    """The API key is sent where the server may ask for it, and no repr holds it."""
    key = Secret("sk-very-secret")
    with serving(send(OK)) as server:
        client = Client(server.url, key=key)
        client.get("/v1/models", deadline_s=PATIENCE_S)
        client.post("/tokenize", {}, deadline_s=PATIENCE_S)
        client.get("/metrics", deadline_s=PATIENCE_S)
        *asking, last = server.requests
    assert len(asking) == 2
    assert all(b"Authorization: Bearer sk-very-secret" in request for request in asking)
    assert b"secret" not in last
    assert "secret" not in repr(key) + str(key) + repr(vars(client))


def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy variable must not send probes elsewhere."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with serving(send(OK)) as server:
        assert isinstance(get(server.url), Answer)


def test_a_name_without_an_address_is_unresolved() -> None:
    """A host that does not exist says nothing about the server."""
    answer = get("http://name.invalid:1")
    assert isinstance(answer, Failure) and answer.kind is FailureKind.UNRESOLVED


def test_a_compressed_bomb_stays_compressed() -> None:
    """A body is never decompressed, whatever its headers say."""
    body = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00"
    with serving(send(body)) as server:
        answer = get(server.url)
    assert isinstance(answer, Answer) and answer.body == b"\x1f\x8b\x08\x00"


# --- keys and certificates ------------------------------------------------------------------------


def test_a_key_that_changes_in_its_file_is_the_one_that_is_sent(tmp_path: Path) -> None:
    """After a rotation the next question carries the new key; without a readable one the last."""
    path = tmp_path / "key"
    path.write_text("sk-first\n")
    key = settings.secret("--api-key-file", path)
    with serving(send(OK)) as server:
        client = Client(server.url, key=key)

        def sent() -> str:
            client.get("/v1/models", deadline_s=PATIENCE_S)
            (line,) = [x for x in server.requests[-1].split(b"\r\n") if b"Authorization" in x]
            return line.decode()

        assert sent().endswith("sk-first")
        path.write_text("sk-second\n")
        assert sent().endswith("sk-second")
        path.write_text("")
        assert sent().endswith("sk-second")
        path.unlink()
        assert sent().endswith("sk-second")
        os.mkfifo(path)  # nobody writes: to read it would never end
        assert sent().endswith("sk-second")
        assert "sk-" not in repr(key)


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that vouches for itself, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-out", str(cert), "-keyout", str(key)),
        ],
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    return cert, key


@contextlib.contextmanager
def serving_tls(cert: Path, key: Path) -> Iterator[str]:
    """A server of that certificate that answers every question with 200."""

    class Handler200(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2" if self.path == "/" else "1000000")
            self.end_headers()
            self.wfile.write(b"ok")
            while self.path != "/":
                time.sleep(0.05)
                self.wfile.write(b"x")

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that does not trust it hangs up."""

    server = Quiet(("127.0.0.1", 0), Handler200)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE_S)


def test_a_server_is_trusted_by_the_certificates_of_a_file(tmp_path: Path) -> None:
    """With the file that vouches for it an https target answers; with the public authorities or
    with others it is refused, and the detail says why."""
    mine, key = certificate(tmp_path, "mine")
    other, _ = certificate(tmp_path, "other")
    with serving_tls(mine, key) as url:
        trusted = Client(url, authorities=mine).get("/", deadline_s=PATIENCE_S)
        assert isinstance(trusted, Answer) and trusted.body == b"ok"
        for authorities in (None, other):
            answer = Client(url, authorities=authorities).get("/", deadline_s=PATIENCE_S)
            assert isinstance(answer, Failure) and answer.kind is FailureKind.TLS
            assert "CERTIFICATE_VERIFY_FAILED" in answer.detail


def test_an_encrypted_answer_that_trickles_ends_by_the_deadline(tmp_path: Path) -> None:
    """The connection that is cut is the one under TLS."""
    cert, key = certificate(tmp_path, "mine")
    with serving_tls(cert, key) as url:
        began = time.monotonic()
        answer = Client(url, authorities=cert).get("/trickle", deadline_s=DEADLINE_S)
        took = time.monotonic() - began
    assert isinstance(answer, Failure) and answer.kind is FailureKind.TIMEOUT
    assert took < DEADLINE_S + MARGIN_S


def test_a_file_without_certificates_is_refused(tmp_path: Path) -> None:
    """One line that names the setting, the file and the fix."""
    path = tmp_path / "ca"
    path.write_text("none\n")
    for given in (path, tmp_path / "missing", tmp_path):
        with pytest.raises(settings.SettingsError, match=r"^--ca-file: .*in PEM$"):
            settings.make("rehearsal", ca_file=given)
