"""A bounded HTTP client: every question ends by its deadline, whatever the server does.

Redirects are not followed, proxies and .netrc of the environment are not read, bodies are not
decompressed, and every question opens its own connection: a kept-alive one that the server closes
between two scrapes looks like a dead server.
"""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from http.client import HTTPException, IncompleteRead, RemoteDisconnected
from pathlib import Path
from typing import Any, TypeVar

import certifi
import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from deploy.door import OPEN
from deploy.files import SecretError, open_regular, read_secret
from healthcheck.client.answers import Answer, Failure, FailureKind
from healthcheck.client.cancel import DEADLINES, Cancel
from healthcheck.client.resolver import RESOLVER, connect

CHUNK_BYTES = 65536
ERROR_BYTES = 16 * 1024  # of an answer that is no 200
LEAST_S = 0.001  # a time-out of 0 would mean not to wait at all
# vLLM's /metrics is 50 kB for one engine; a completion with 64 logprobs 15 kB.
LIMIT_BYTES = 4 * 1024 * 1024
_NO_HEADERS: Mapping[str, str] = {}

Response = requests.Response
T = TypeVar("T")
#: Reads an answer to a question that began at that second of the monotonic clock.
Read = Callable[[Response, float], T | Failure]


class Secret:
    """A value that never shows itself in a log, a report or a traceback."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value, for the one place that sends or compares it."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"


class FileSecret(Secret):
    """The secret of a file, read again whenever it is needed: a key that was changed there is the
    one that is sent. While there is none to be read, the last one holds."""

    __slots__ = ("_path",)

    def __init__(self, value: str, path: Path) -> None:
        super().__init__(value)
        self._path = path

    def reveal(self) -> str:
        """The value that the file has now."""
        with contextlib.suppress(OSError, SecretError):
            self._value = read_secret(self._path, open_regular) or self._value
        return self._value


@functools.cache
def _public_authorities() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certifi.where())  # those that requests trusts


def tls_context(authorities: Path | None) -> ssl.SSLContext:
    """What a server's certificate is held against: the public authorities, or those of a file, read
    anew. Raises OSError, of which ssl.SSLError is one."""
    if authorities is None:
        return _public_authorities()
    return ssl.create_default_context(cafile=authorities)


class _Asking(threading.local):
    """The question that this thread asks: its end in monotonic seconds, and what cuts it off."""

    until: float = 0.0
    connect_s: float = 0.0
    cancel: Cancel | None = None


_asking = _Asking()


def _connected(connection: HTTPConnection) -> socket.socket:
    """urllib3's connection, made within the question's deadline and cut off at it."""
    addresses = RESOLVER.addresses(connection.host.strip("[]"), connection.port, _asking.until)
    sock = connect(addresses, _asking.connect_s, _asking.until)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _asking.cancel is not None:
            _asking.cancel.watch(sock)
        sock.settimeout(max(_asking.until - time.monotonic(), LEAST_S))
    except OSError:
        sock.close()
        raise
    return sock


class _HTTPConnection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return _connected(self)


class _HTTPSConnection(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return _connected(self)


class _HTTPPool(HTTPConnectionPool):
    ConnectionCls = _HTTPConnection


class _HTTPSPool(HTTPSConnectionPool):
    ConnectionCls = _HTTPSConnection


class _Adapter(HTTPAdapter):
    """Connections that can be cut, and no retries: a retry hides what is being measured."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._context = context
        super().__init__(max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs, ssl_context=self._context)
        self.poolmanager.pool_classes_by_scheme = {"http": _HTTPPool, "https": _HTTPSPool}

    def cert_verify(self, *args: Any) -> None:
        """The context holds the authorities already."""


class Client:
    """Asks one server. `base_url` without a trailing slash; `key` is sent to all but open paths;
    `authorities` is a file of certificates to trust, in PEM, instead of the public ones."""

    def __init__(
        self,
        base_url: str,
        *,
        connect_timeout_s: float = 2.0,
        key: Secret | None = None,
        authorities: Path | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.authorities = authorities
        self._connect_timeout_s = connect_timeout_s
        self._key = key

    @property
    def stranger(self) -> Client | None:
        """The same client without its key; None if it has none."""
        if self._key is None:
            return None
        return self.at(self.base_url)

    def at(self, base_url: str) -> Client:
        """A client of another server, as patient and as trusting, without a key."""
        return Client(
            base_url, connect_timeout_s=self._connect_timeout_s, authorities=self.authorities
        )

    def get(
        self,
        path: str,
        *,
        deadline_s: float,
        limit_bytes: int = LIMIT_BYTES,
        cancel: Cancel | None = None,
    ) -> Answer | Failure:
        """GET a path. Ends within `deadline_s`."""
        return self.ask("GET", path, whole(limit_bytes), deadline_s=deadline_s, cancel=cancel)

    def post(
        self,
        path: str,
        payload: Mapping[str, object],
        *,
        deadline_s: float,
        limit_bytes: int = LIMIT_BYTES,
        **how: Any,
    ) -> Answer | Failure:
        """POST a JSON payload. Ends within `deadline_s`; `how` as `ask` takes it."""
        read = whole(limit_bytes)
        return self.ask("POST", path, read, payload=payload, deadline_s=deadline_s, **how)

    def ask(
        self,
        method: str,
        path: str,
        read: Read[T],
        *,
        deadline_s: float,
        payload: Mapping[str, object] | None = None,
        cancel: Cancel | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> T | Failure:
        """What `read` makes of the answer. Ends within `deadline_s`, or when `cancel` is aborted;
        whatever goes wrong until `read` has ended is a Failure."""
        body = None if payload is None else json.dumps(payload).encode()
        cancel = cancel or Cancel()
        began = time.monotonic()
        DEADLINES.add(cancel, began + deadline_s)
        _asking.until, _asking.connect_s = began + deadline_s, self._connect_timeout_s
        _asking.cancel = cancel
        answer: T | Failure
        try:
            # The adapter alone: a session reads and decodes the body of a redirect by itself.
            request = requests.Request(
                method,
                self.base_url + path,
                headers={**self.headers_for(path, body), **headers},
                data=body,
            ).prepare()
            https = self.base_url.lower().startswith("https:")
            context = tls_context(self.authorities) if https else None
            with (
                contextlib.closing(_Adapter(context)) as adapter,
                contextlib.closing(
                    adapter.send(request, stream=True, timeout=deadline_s)
                ) as response,
            ):
                answer = read(response, began)
        except _ERRORS as e:
            answer = Failure(_kind_of(e), _line(e))
        finally:
            DEADLINES.drop(cancel)
            cancel.release()
            _asking.cancel = None
        elapsed = time.monotonic() - began
        if cancel.reason is not None:
            word = "no whole answer in time" if cancel.reason is FailureKind.TIMEOUT else "aborted"
            return Failure(cancel.reason, f"{method} {path}: {word}", elapsed)
        if isinstance(answer, Failure):
            return Failure(answer.kind, f"{method} {path}: {answer.detail}", elapsed)
        return answer

    def headers_for(self, path: str, body: bytes | None) -> dict[str, str]:
        """What every question carries; the key goes where it may be asked for."""
        headers = {"Accept-Encoding": "identity", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._key is not None and path not in OPEN:
            headers["Authorization"] = f"Bearer {self._key.reveal()}"
        return headers


def whole(limit_bytes: int) -> Read[Answer]:
    """Reads a whole answer, of no more than so many bytes; a redirect's body is not read."""

    def read(response: Response, began: float) -> Answer | Failure:
        status = response.status_code
        most = limit_bytes if status == 200 else ERROR_BYTES
        content = bytearray()
        while not 300 <= status < 400 and (
            chunk := response.raw.read(CHUNK_BYTES, decode_content=False)
        ):
            content += chunk
            if len(content) > most and status == 200:
                return Failure(FailureKind.TOO_LARGE, f"more than {most} bytes")
            if len(content) > most:  # the status says it; the text is only shown
                break
        del content[most:]
        return Answer(status, bytes(content), time.monotonic() - began)

    return read


# What urllib3 lets through is among them: bad status lines, sockets cut under it.
_ERRORS = (
    *(requests.RequestException, urllib3.exceptions.HTTPError, HTTPException),
    *(OSError, ValueError),
)
# The first row of which any cause is an instance decides; urllib3 calls a refused connection a
# time-out as well, so the order matters.
_KINDS: tuple[tuple[FailureKind, tuple[type[BaseException], ...]], ...] = (
    (FailureKind.REFUSED, (ConnectionRefusedError,)),
    (FailureKind.UNRESOLVED, (urllib3.exceptions.NameResolutionError, socket.gaierror)),
    (FailureKind.TRUNCATED, (urllib3.exceptions.IncompleteRead, IncompleteRead)),
    (FailureKind.TLS, (ssl.SSLError,)),
    (FailureKind.TIMEOUT, (TimeoutError, requests.Timeout, urllib3.exceptions.ReadTimeoutError)),
    (FailureKind.RESET, (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)),
    (FailureKind.RESET, (RemoteDisconnected,)),
    (FailureKind.MALFORMED, (HTTPException, urllib3.exceptions.InvalidHeader, ValueError)),
)


def _kind_of(error: BaseException) -> FailureKind:
    causes = _causes(error)
    for kind, types in _KINDS:
        if any(isinstance(cause, types) for cause in causes):
            return kind
    return FailureKind.UNREACHABLE


def _causes(error: BaseException | None) -> list[BaseException]:
    """The error and everything it wraps, in urllib3's and requests' several ways."""
    found: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting and len(found) < 20:
        item = waiting.pop()
        if not isinstance(item, BaseException) or item in found:
            continue
        found.append(item)
        waiting += [*item.args, item.__cause__, item.__context__, getattr(item, "reason", None)]
    return found


def _line(error: BaseException) -> str:
    """The innermost message on one line; the outer ones repeat the address."""
    return " ".join(str(_causes(error)[-1] or error).split())[:200]
