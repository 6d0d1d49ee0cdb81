"""Runs generations one at a time, in a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from healthcheck.client.cancel import Cancel
from healthcheck.service.generate import Generator
from healthcheck.verdict import Generation, Outstanding, Want
from healthcheck.worker import Worker


class Runner:
    """Runs each generation in a thread kept for it; calls `wake` when it has ended."""

    def __init__(self, generator: Generator, wake: Callable[[], None]) -> None:
        self._generator = generator
        self._wake = wake
        self._lock = threading.Lock()
        self._worker = Worker("generation")
        self._running: Outstanding | None = None
        self._cancel = Cancel()
        self._finished: Generation | None = None

    def start(self, want: Want, model: str, now: float) -> None:
        """Begin one. Raises RuntimeError if there can be no thread."""
        with self._lock:
            if self._running is not None:
                raise RuntimeError("a generation is running already")
            cancel = self._cancel = Cancel()
            self._worker.do(lambda: self._run(want, model, cancel))
            self._running = Outstanding(want.step, want.epoch, now, want.engine)

    def poll(self, now: float) -> tuple[Generation | None, Outstanding | None]:
        """What has finished and what runs, seen together: one of them cannot be missed."""
        del now
        with self._lock:
            finished, self._finished = self._finished, None
            return finished, self._running

    def stop(self) -> None:
        """Close its connection, upon which vLLM aborts the request."""
        with self._lock:
            self._cancel.abort()

    def end(self) -> None:
        """The same, and let the thread go."""
        self.stop()
        self._worker.end()

    def _run(self, want: Want, model: str, cancel: Cancel) -> None:
        finished: Generation | None = None
        try:
            finished = self._generator.run(want, model, cancel)
        finally:
            with self._lock:
                self._running = None
                self._finished = finished
            self._wake()
