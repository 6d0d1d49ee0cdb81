"""Names the cause in the server's log, when the server is not up and a log was given."""

from __future__ import annotations

import io
import time
from dataclasses import dataclass
from pathlib import Path

from healthcheck.explain import Explainer, explain_stream
from healthcheck.verdict import State

# The end of a log holds the last start: 25 kB if healthy, some MB with tracebacks of 8 ranks.
TAIL_BYTES = 4 * 1024 * 1024
PAUSE_S = 15.0
# In these the server may have said why; in the others it serves.
ASKS = frozenset({State.LOADING, State.DEAD, State.STALLED})


@dataclass(frozen=True)
class Cause:
    """What the log gives as the cause: the signature's id, one line, and what to do."""

    id: str
    headline: str
    remedy: str
    source: str


class Log:
    """The server's log, read again only when it has changed; its silence counts too."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._looked_at = float("-inf")
        self._explainer = Explainer()
        self._cause: Cause | None = None

    def cause(self, state: State, now: float) -> Cause | None:
        """The cause as far as the log tells it; None in the states that need none."""
        if state not in ASKS:
            return None
        if now - self._looked_at >= PAUSE_S:
            self._looked_at = now
            try:
                self._look()
            except (OSError, ValueError):
                self._cause = None  # no log to read, no cause to name
        return self._cause

    def _look(self) -> None:
        status = self._path.stat()
        seen = (status.st_size, status.st_mtime_ns)
        if seen != self._seen:
            self._explainer = Explainer()
            with self._path.open("rb") as file:
                file.seek(max(status.st_size - TAIL_BYTES, 0))
                explain_stream(io.BytesIO(file.read(TAIL_BYTES)), self._explainer)
            self._seen = seen
        # AITER tells a wait for a lock once and is silent from then on: only its age says more.
        self._explainer.silence(max(0.0, time.time() - status.st_mtime))
        found = self._explainer.result()
        cause = found.cause
        self._cause = None
        if cause is not None:
            self._cause = Cause(cause.id, found.headline, cause.remedy, cause.source)
