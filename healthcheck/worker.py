"""A thread that is kept: it does what it is handed, in order, and who waits for it may leave.

Kept, so that a limit of threads that is reached later stops nothing that works now; a daemon, so
that what hangs in it holds up nobody's end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


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
