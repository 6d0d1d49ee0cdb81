"""A thread that is kept: it does what it is handed, in order, and who waits for it may leave.

Kept, so that a limit of threads that is reached later stops nothing that works now; a daemon, so
that what hangs in it holds up nobody's end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# What is repeated rests nine times as long as it has worked: a tenth of a core at most.
REST = 9.0
STUCK_S = 60.0  # after which the last result says nothing about now
ERROR_PAUSE_S = 60.0


class Worker:
    """Does one call at a time. Thread-safe; `do` may be called in a signal's handler."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    @property
    def waiting(self) -> int:
        """Calls that were handed over and have not begun."""
        return self._calls.qsize()

    def start(self) -> None:
        """Have the thread. Raises RuntimeError if there can be none."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread

    def do(self, call: Callable[[], T]) -> Future[T]:
        """Hand over a call. Raises RuntimeError if there is no thread and can be none."""
        self.start()
        future: Future[T] = Future()
        self._calls.put((future, call))
        return future

    def end(self) -> None:
        """Let the thread end, after what it was handed before."""
        self._calls.put(None)

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as e:  # the thread is kept whatever a call does
                future.set_exception(e)
            del item, future, call


class Repeated(Generic[T]):
    """The result of a call that is made again and again, without waiting for it in the thread that
    asks; `nothing` before there is one and once the call hangs. Without a worker it is made there
    and then. For one thread; times are seconds of any one clock."""

    def __init__(
        self, call: Callable[[], T], nothing: T, pause_s: float = 0.0, worker: Worker | None = None
    ) -> None:
        self._call = call
        self._nothing = nothing
        self._pause_s = pause_s
        self._worker = worker
        self._value = nothing
        self._due = float("-inf")
        self._running: Future[tuple[T, float]] | None = None
        self._since = 0.0

    def latest(self, now: float) -> T:
        """The last result; the next call is begun when it is due. Raises what the call raised."""
        if self._running is not None and self._running.done():
            running, self._running = self._running, None
            self._take(running, now)
        if self._running is not None and now - self._since >= STUCK_S:
            self._value = self._nothing
        if self._running is None and now >= self._due:
            self._since = now
            if self._worker is None:
                self._due = now + self._pause_s
                self._value = self._call()
            else:
                self._running = self._worker.do(self._timed)
        return self._value

    def _take(self, running: Future[tuple[T, float]], now: float) -> None:
        self._due = now + ERROR_PAUSE_S
        self._value = self._nothing
        self._value, worked_s = running.result()
        self._due = now + max(self._pause_s, REST * worked_s)

    def _timed(self) -> tuple[T, float]:
        began = time.thread_time()
        return self._call(), time.thread_time() - began
