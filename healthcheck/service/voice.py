"""Lines for whoever reads stderr. No reader, a full disk or a pipe that nobody empties stops
nothing: the lines are written in a thread of their own, and what cannot be written is left out."""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future, wait

from healthcheck.worker import Worker

MOST_WAITING = 100  # lines that a reader may be behind
_worker = Worker("stderr")
_last: Future[None] = Future()
_last.set_result(None)


def to_stderr(line: str) -> None:
    """One line to stderr, where container logs take it from. Never waits, never raises."""
    global _last
    if _worker.waiting >= MOST_WAITING:
        return
    try:
        _last = _worker.do(lambda: _write(f"{line}\n".encode(errors="backslashreplace")))
    except RuntimeError:
        return  # there can be no thread now, and to write in this one may take for ever


def flush(timeout_s: float) -> None:
    """Wait until the last line is written, at most `timeout_s`."""
    wait([_last], timeout_s)


def _write(data: bytes) -> None:
    """Raises OSError, which the worker keeps to itself."""
    if sys.stderr is None:  # closed at the start: its number may be another file's by now
        return
    number = sys.stderr.fileno()
    # Past Python's own buffer: a thread that hangs in it breaks the end of the process.
    while data:
        data = data[os.write(number, data) :]
