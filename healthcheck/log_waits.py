"""Lines that are ordinary for a while: how long each process has been waiting without progress."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from healthcheck.log_lines import LogLine
from healthcheck.signatures import Signature

MOST_WAITS = 128  # remembered at once; a node has 8 ranks and few kinds of waits


@dataclass
class Wait:
    """One process at one kind of wait. `since_s` moves on with every sign of progress."""

    signature: Signature
    process: str
    line_number: int
    since_s: float | None
    reported_s: float = 0.0  # what the lines themselves say they have waited
    ended: bool = False

    def age_s(self, now: float | None) -> float | None:
        """Seconds of waiting without progress, or None if the log gives no time at all."""
        by_clock = now - self.since_s if now is not None and self.since_s is not None else None
        if by_clock is None and not self.reported_s:
            return None
        return max(by_clock or 0.0, self.reported_s)

    def overdue(self, now: float | None) -> bool:
        """Whether it has lasted longer than the signature's budget."""
        age, budget = self.age_s(now), self.signature.budget_s
        return not self.ended and age is not None and budget is not None and age > budget


class Waits:
    """All waits of a start, by signature and process."""

    def __init__(self) -> None:
        self._waits: OrderedDict[tuple[str, str], Wait] = OrderedDict()

    @property
    def pending(self) -> bool:
        """Whether any process waits as far as the log says."""
        return any(not wait.ended for wait in self._waits.values())

    def all(self) -> tuple[Wait, ...]:
        """Every wait, those that are over too, in the order in which they began."""
        return tuple(sorted(self._waits.values(), key=lambda wait: wait.line_number))

    def report(
        self, signature: Signature, line: LogLine, number: int, now: float | None, says_s: float
    ) -> None:
        """A line says that its process waits, and did so for `says_s` seconds before it."""
        key = (signature.id, line.process)
        wait = self._waits.get(key)
        if wait is None or wait.ended:
            self._waits.pop(key, None)
            wait = self._waits[key] = Wait(signature, line.process, number, now)
            if len(self._waits) > MOST_WAITS:
                self._waits.popitem(last=False)
        if wait.since_s is None:
            wait.since_s = now
        wait.reported_s += says_s

    def progress(self, line: LogLine, now: float | None, further: bool) -> None:
        """A line that is no wait. Its own process waits no longer; a worker's line, or one that
        shows the start has come `further`, says for all others that something still moves."""
        moves = further or line.process.startswith("Worker") or line.text.startswith("[aiter]")
        for wait in self._waits.values():
            if wait.ended:
                continue
            if line.process == wait.process and (line.process or moves):
                wait.ended = True
            elif moves:
                wait.since_s = now
                wait.reported_s = 0.0
