"""Addresses of a host within a deadline: the system's own lookup knows none."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from concurrent.futures import Future
from typing import Any

from healthcheck.worker import Worker

# Family, type, protocol, canonical name and address, as getaddrinfo gives them.
Addresses = list[tuple[Any, ...]]


class Resolver:
    """Looks names up in a thread of its own, one at a time; who asks meanwhile gets that answer."""

    def __init__(self) -> None:
        self._worker = Worker("resolver")
        self._lock = threading.Lock()
        self._running: dict[tuple[str, int], Future[Addresses]] = {}

    def addresses(self, host: str, port: int, until: float) -> Addresses:
        """Where to connect. Raises OSError; TimeoutError at `until`, in monotonic seconds."""
        if _is_address(host):
            return _look_up(host, port)  # which asks nobody
        key = host, port
        with self._lock:
            lookup = self._running.get(key)
            if lookup is None or lookup.done():
                lookup = self._running[key] = self._worker.do(lambda: _look_up(host, port))
        try:
            return lookup.result(max(until - time.monotonic(), 0.0))
        except TimeoutError as e:
            raise TimeoutError(f"the lookup of {host} does not end") from e


def connect(addresses: Addresses, timeout_s: float, until: float) -> socket.socket:
    """A connection to the first address that takes one: `timeout_s` for each, all by `until`.

    Raises the last address' OSError, TimeoutError at `until`.
    """
    last: OSError = TimeoutError("no time to connect")
    for family, kind, protocol, _, address in addresses:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("no address took a connection in time") from last
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(min(timeout_s, left))
            sock.connect(address)
        except OSError as e:
            sock.close()
            last = e
        else:
            return sock
    raise last


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _look_up(host: str, port: int) -> Addresses:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))


RESOLVER = Resolver()
