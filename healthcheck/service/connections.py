"""Connections to the service: so many at once, and each has so long for a question and its answer.

uvicorn alone waits without end for the rest of a request's head, and takes connections until the
process has no file left for the next probe.
"""

from __future__ import annotations

import asyncio
import itertools

from uvicorn.protocols.http.h11_impl import H11Protocol

# From the connection, or the answer before, to the end of an answer, which is at hand at once.
EXCHANGE_S = 10.0
# With those of one turn of accepting (BACKLOG) and what the service opens itself, below 256 files.
MOST = 128
BACKLOG = 64
LONGEST_HEAD_BYTES = 16384


class Connection(H11Protocol):
    """A connection that is cut when its time is over, or when it is the oldest of too many."""

    _turns = itertools.count()
    _late: asyncio.TimerHandle | None = None
    turn = 0
    """Grows with every time that begins, of all connections."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the time; make room if need be. Who waits longest is who says nothing."""
        super().connection_made(transport)
        self._begin_time()
        if len(self.connections) > MOST:
            known = [other for other in self.connections if isinstance(other, Connection)]
            min(known, key=lambda other: other.turn).cut()

    def on_response_complete(self) -> None:
        """Begin the time of the next question."""
        super().on_response_complete()
        self._begin_time()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the time."""
        self._end_time()
        super().connection_lost(exc)

    def cut(self) -> None:
        """Close it now, whatever is still to be sent."""
        self.connections.discard(self)  # the next to be cut is another one
        self.transport.abort()

    def _begin_time(self) -> None:
        self._end_time()
        self.turn = next(self._turns)
        if not self.transport.is_closing():
            self._late = self.loop.call_later(EXCHANGE_S, self.cut)

    def _end_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
