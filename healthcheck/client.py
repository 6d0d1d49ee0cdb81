"""A bounded HTTP client: every question ends by its deadline, whatever the server does.

Redirects are not followed, proxies and .netrc of the environment are not read, bodies are not
decompressed, and every question opens its own connection: a kept-alive one that the server closes
between two scrapes looks like a dead server.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from http.client import HTTPException, IncompleteRead, RemoteDisconnected
from typing import Any

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from healthcheck.answers import Answer, Failure, FailureKind

CHUNK_BYTES = 65536
# vLLM's /metrics is 50 kB for one engine; a completion with 64 logprobs 15 kB.
LIMIT_BYTES = 4 * 1024 * 1024
_NO_HEADERS: Mapping[str, str] = {}


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


class Cancel:
    """Ends a running question from another thread.

    It closes the connection at the socket, which also makes vLLM abort the request.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._reason: FailureKind | None = None
        self._children: list[Cancel] = []

    def child(self) -> Cancel:
        """One for a question of its own, which this one's abort ends as well."""
        with self._lock:
            made = Cancel()
            made._reason = self._reason
            self._children.append(made)
            return made

    @property
    def reason(self) -> FailureKind | None:
        """Why the question was ended, None if it was not."""
        return self._reason

    def abort(self, reason: FailureKind = FailureKind.ABORTED) -> None:
        """End the question, now or as soon as it connects; the first reason stands."""
        with self._lock:
            self._reason = self._reason or reason
            if self._sock is not None:
                _shut(self._sock)
            children = tuple(self._children)
        for child in children:
            child.abort(reason)

    def watch(self, sock: socket.socket) -> None:
        """Take over a connection that has just been made."""
        with self._lock:
            self._sock = sock
            if self._reason is not None:
                _shut(sock)

    def release(self) -> None:
        """The question is over; a late abort must not touch a reused descriptor."""
        with self._lock:
            self._sock = None


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # already closed by the other side


class _Watched(threading.local):
    """The Cancel of the question that this thread is asking."""

    cancel: Cancel | None = None


_watched = _Watched()


class _HTTPConnection(HTTPConnection):
    def connect(self) -> None:
        super().connect()
        if _watched.cancel is not None and self.sock is not None:
            _watched.cancel.watch(self.sock)


class _HTTPSConnection(HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        if _watched.cancel is not None and self.sock is not None:
            _watched.cancel.watch(self.sock)


class _HTTPPool(HTTPConnectionPool):
    ConnectionCls = _HTTPConnection


class _HTTPSPool(HTTPSConnectionPool):
    ConnectionCls = _HTTPSConnection


class _Adapter(HTTPAdapter):
    """Connections that can be cut, and no retries: a retry hides what is being measured."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _HTTPPool, "https": _HTTPSPool}


class Client:
    """Asks one server. `base_url` without a trailing slash; `key` is sent to /v1 paths only."""

    def __init__(
        self, base_url: str, *, connect_timeout_s: float = 2.0, key: Secret | None = None
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._connect_timeout_s = connect_timeout_s
        self._key = key

    def get(
        self,
        path: str,
        *,
        deadline_s: float,
        first_byte_s: float | None = None,
        limit_bytes: int = LIMIT_BYTES,
        cancel: Cancel | None = None,
    ) -> Answer | Failure:
        """GET a path. Ends within `deadline_s`; the first byte may have a shorter deadline."""
        return self._ask("GET", path, None, deadline_s, first_byte_s, limit_bytes, cancel)

    def post(
        self,
        path: str,
        payload: Mapping[str, object],
        *,
        deadline_s: float,
        first_byte_s: float | None = None,
        limit_bytes: int = LIMIT_BYTES,
        cancel: Cancel | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> Answer | Failure:
        """POST a JSON payload. Ends within `deadline_s`, or when `cancel` is aborted."""
        body = json.dumps(payload).encode()
        return self._ask("POST", path, body, deadline_s, first_byte_s, limit_bytes, cancel, headers)

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None,
        deadline_s: float,
        first_byte_s: float | None,
        limit_bytes: int,
        cancel: Cancel | None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> Answer | Failure:
        cancel = cancel or Cancel()
        began = time.monotonic()
        # A read time-out restarts with every byte, so only cutting the socket bounds the whole.
        timer = threading.Timer(deadline_s, cancel.abort, (FailureKind.TIMEOUT,))
        timer.daemon = True
        timer.start()
        _watched.cancel = cancel
        try:
            answer = self._exchange(
                method, path, body, deadline_s, first_byte_s, limit_bytes, headers
            )
        except (requests.RequestException, urllib3.exceptions.HTTPError) as e:
            answer = Failure(_kind_of(e), _line(e))
        except (HTTPException, OSError, ValueError) as e:
            # What urllib3 lets through: bad status lines, sockets cut under it.
            answer = Failure(_kind_of(e), _line(e))
        finally:
            timer.cancel()
            cancel.release()
            _watched.cancel = None
        elapsed = time.monotonic() - began
        if cancel.reason is not None:
            word = "no whole answer in time" if cancel.reason is FailureKind.TIMEOUT else "aborted"
            return Failure(cancel.reason, f"{method} {path}: {word}", elapsed)
        if isinstance(answer, Failure):
            return Failure(answer.kind, f"{method} {path}: {answer.detail}", elapsed)
        return Answer(answer.status, answer.body, answer.content_type, elapsed)

    def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | None,
        deadline_s: float,
        first_byte_s: float | None,
        limit_bytes: int,
        headers: Mapping[str, str],
    ) -> Answer | Failure:
        connect = min(self._connect_timeout_s, deadline_s)
        read = min(first_byte_s or deadline_s, deadline_s)
        with requests.Session() as session:
            session.trust_env = False
            session.mount("http://", _Adapter(max_retries=0))
            session.mount("https://", _Adapter(max_retries=0))
            with session.request(
                method,
                self.base_url + path,
                data=body,
                headers={**self.headers_for(path, body), **headers},
                timeout=(connect, read),
                allow_redirects=False,
                stream=True,
            ) as response:
                content = bytearray()
                while chunk := response.raw.read(CHUNK_BYTES, decode_content=False):
                    content += chunk
                    if len(content) > limit_bytes:
                        return Failure(FailureKind.TOO_LARGE, f"more than {limit_bytes} bytes")
                content_type = response.headers.get("Content-Type", "")
                return Answer(response.status_code, bytes(content), content_type)

    def headers_for(self, path: str, body: bytes | None) -> dict[str, str]:
        """What every question carries; the key goes to /v1 paths only."""
        headers = {"Accept-Encoding": "identity", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._key is not None and path.startswith("/v1/"):
            headers["Authorization"] = f"Bearer {self._key.reveal()}"
        return headers


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
