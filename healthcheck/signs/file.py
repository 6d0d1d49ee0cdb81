"""Reads the file of vital signs, without trusting it and without waiting for a disk."""

from __future__ import annotations

import functools
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path

from deploy.files import open_regular
from healthcheck.signs.model import LIMIT_BYTES, NAME, Signs, load
from healthcheck.worker import Worker

BOOT = Path("/proc/sys/kernel/random/boot_id")
# For a file of some kilobytes; what takes longer is a disk that hangs.
WAIT_S = 0.25


@functools.cache
def boot() -> str:
    """What tells this boot of the host from every other, the same in all its containers; empty
    where the kernel does not tell."""
    try:
        return BOOT.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def read(path: Path) -> Signs | None:
    """What a file holds; None unless it was written whole, on this host, since its boot."""
    try:
        with open_regular(path) as file:
            signs = load(file.read(LIMIT_BYTES + 1))
    except (OSError, ValueError):
        return None
    return signs if signs is not None and signs.boot and signs.boot == boot() else None


class Beside:
    """The signs beside a log. How old they are is for the reader to judge."""

    def __init__(self, log: Path, worker: Worker | None = None) -> None:
        self._path = log.with_name(NAME)
        self._worker = worker or Worker("signs")
        self._running: Future[Signs | None] | None = None

    def __call__(self) -> Signs | None:
        """What is there now; None also while a disk does not answer, or there can be no thread."""
        try:
            self._running = self._running or self._worker.do(lambda: read(self._path))
            signs = self._running.result(WAIT_S)
        except (NotYet, RuntimeError):
            return None
        self._running = None
        return signs
