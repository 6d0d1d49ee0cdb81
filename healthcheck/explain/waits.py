"""Lines that are ordinary for a while: how long each process has been waiting without progress."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from healthcheck.explain.lines import LogLine, printable
from healthcheck.explain.signatures import Signature

MOST_WAITS = 128  # remembered at once; a node has 8 ranks and few kinds of waits
SECONDS = "seconds"  # the group of a line that says how long it waited, and will say so again
# A line that comes every N seconds while the wait lasts (vllm 0.27.1, shm_broadcast.py) has two
# chances to be late before its absence means that the wait is over.
PERIODS_UNTIL_OVER = 3
# Tokens are counted every 10 s (vllm 0.27.1, VLLM_LOG_STATS_INTERVAL): those of the first counts
# may have been made before the wait began.
COUNTS_ARE_OLD_S = 30.0


@dataclass
class Wait:
    """One process at one kind of wait. `since_s` moves on with every sign of progress."""

    signature: Signature
    process: str
    rank: str
    line_number: int
    text: str
    values: dict[str, str]
    begun_s: float | None
    since_s: float | None
    repeated_s: float | None  # when it last said so
    period_s: float = 0.0  # after which it says so again, or 0 if it says so once
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

    def same(self, values: dict[str, str]) -> bool:
        """Whether a line with these values tells of the same wait: for the same lock, if it names
        one."""
        return _named(self.values) == _named(values)

    def lapsed(self, now: float | None) -> bool:
        """Whether the log has gone on for so long that the wait would have been told again."""
        if not self.period_s or now is None or self.repeated_s is None:
            return False
        return now - self.repeated_s > PERIODS_UNTIL_OVER * self.period_s


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
        self,
        signature: Signature,
        line: LogLine,
        number: int,
        now: float | None,
        values: dict[str, str],
    ) -> None:
        """A line says that its process waits."""
        key = (signature.id, line.process)
        wait = self._waits.get(key)
        if wait is None or wait.ended or not wait.same(values):
            self._waits.pop(key, None)
            text = printable(line.text.strip())
            wait = Wait(
                signature, line.process, line.rank, number, text, values, now, now, repeated_s=now
            )
            self._waits[key] = wait
            if len(self._waits) > MOST_WAITS:
                self._waits.popitem(last=False)
        if wait.since_s is None:
            wait.begun_s = wait.since_s = now
        wait.repeated_s = now
        wait.period_s = _seconds(values)
        wait.reported_s += wait.period_s

    def pass_time(self, now: float | None) -> None:
        """The log goes on: what would have been told again by now is over."""
        for wait in self._waits.values():
            if wait.lapsed(now):
                wait.ended = True

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
                _renew(wait, now)

    def tokens(self, now: float | None) -> None:
        """The server counts new tokens, for which every worker takes its steps."""
        for wait in self._waits.values():
            if now is not None and wait.begun_s is not None:
                wait.ended = wait.ended or now - wait.begun_s > COUNTS_ARE_OLD_S
            _renew(wait, now)

    def end(self) -> None:
        """The server is ready: nothing that the start waited for is missing."""
        for wait in self._waits.values():
            wait.ended = True


def _renew(wait: Wait, now: float | None) -> None:
    wait.since_s = now
    wait.reported_s = 0.0


def _named(values: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in values.items() if key != SECONDS}


def _seconds(values: dict[str, str]) -> float:
    says = values.get(SECONDS, "")
    return float(says) if says.isdecimal() else 0.0
