"""Ends a question from another thread: on purpose, or because its time is over."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

from healthcheck.client.answers import FailureKind


class Cancel:
    """Ends a running question.

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
            self._shut()
            children = tuple(self._children)
        for child in children:
            child.abort(reason)

    def watch(self, sock: socket.socket) -> None:
        """Take over a connection that has just been made. Raises OSError.

        Under a number of its own: a handshake hides the socket that it is given, and a late abort
        must not touch a number that has become another's.
        """
        with self._lock:
            self._sock = socket.socket(fileno=os.dup(sock.fileno()))
            if self._reason is not None:
                self._shut()

    def release(self) -> None:
        """The question is over."""
        with self._lock:
            if self._sock is not None:
                self._sock.close()
            self._sock = None

    def _shut(self) -> None:
        if self._sock is not None:
            with contextlib.suppress(OSError):  # closed by the other side already
                self._sock.shutdown(socket.SHUT_RDWR)


class Deadlines:
    """Aborts what is late, in one thread for all questions, started with the first and kept.

    A read time-out restarts with every byte, so only cutting the socket bounds the whole.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._until: dict[Cancel, float] = {}
        self._thread: threading.Thread | None = None

    def add(self, cancel: Cancel, until: float) -> None:
        """Abort it at `until`, in monotonic seconds. Raises RuntimeError if there is no thread."""
        with self._condition:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="deadlines", daemon=True)
                thread.start()
                self._thread = thread
            self._until[cancel] = until
            self._condition.notify()

    def drop(self, cancel: Cancel) -> None:
        """It is over."""
        with self._condition:
            self._until.pop(cancel, None)

    def _run(self) -> None:
        while True:
            with self._condition:
                now = time.monotonic()
                late = [cancel for cancel, until in self._until.items() if until <= now]
                for cancel in late:
                    del self._until[cancel]
                if not late:
                    first = min(self._until.values(), default=None)
                    self._condition.wait(None if first is None else first - now)
            for cancel in late:
                cancel.abort(FailureKind.TIMEOUT)


DEADLINES = Deadlines()
