"""What the server's log tells the loop: how far its start has come, and why it is not up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from healthcheck.explain import Explainer
from healthcheck.explain.following import Tail
from healthcheck.explain.startup import Startup
from healthcheck.verdict import State
from healthcheck.worker import Repeated, Worker

PAUSE_S = 1.0  # between two looks
LOOK_BYTES = 2 * 1024 * 1024  # at one look
HALF_LINE_S = 5.0  # after which a line without an end is taken for whole
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
    """The server's log, of which every look reads what is new; its silence counts too.

    It is read in one pass from its last start, and memory stays bounded whatever it holds. The file
    may come late, be cut, and be replaced; a further start in it begins a new timeline. Times are
    seconds of any one clock. For one thread; with a `worker` it is read in that one's, so that no
    disk holds up who asks.
    """

    def __init__(self, path: Path, worker: Worker | None = None) -> None:
        self._explainer = Explainer()
        self._tail = Tail(path, self._explainer, last_start=True)
        nothing: tuple[Cause | None, Startup | None] = (None, None)
        self._looks = Repeated(self._look, nothing, PAUSE_S, worker)

    def cause(self, state: State, now: float) -> Cause | None:
        """The cause as far as the log tells it; None in the states that need none."""
        cause, _ = self._looks.latest(now)
        return cause if state in ASKS else None

    def startup(self, now: float) -> Startup | None:
        """The last start in the log as far as it has come; None if the log tells of none."""
        return self._looks.latest(now)[1]

    def _look(self) -> tuple[Cause | None, Startup | None]:
        try:
            self._tail.read(LOOK_BYTES)
            silence_s = self._tail.silence_s
            if silence_s > HALF_LINE_S and not self._tail.draws:
                self._tail.finish_line()  # a process that was killed ends none
            # AITER tells a wait for a lock once and is silent from then on: only its age says more.
            self._explainer.silence(silence_s)
        except (OSError, ValueError):
            self._tail.close()
            return None, None  # of a log that cannot be read, nothing is known
        found = self._explainer.result()
        # A process that was killed from outside leaves nothing but the consequences.
        told = found.cause or next(iter(found.wrappers), None)
        if told is None:
            return None, found.startup
        return Cause(told.id, found.headline, told.remedy, told.source), found.startup
