"""What is kept of each engine: its counters, and the record of its answers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from deploy.recipe import Health
from healthcheck.client.exposition import EngineSample, Speculation
from healthcheck.judge import Finding, Outcome

# The record of a server without a choice among engines.
ANY = ""
# An engine is out of service when a third of its last answers was bad, be they in a row or not.
ANSWERS_PER_BAD = 3
# Each time it is out again it owes twice as many good ones, up to so many doublings.
MOST_DOUBLINGS = 4
NOTHING = Speculation()


@dataclass(frozen=True)
class Alarm:
    """Raised by enough bad verdicts in a row, cleared by enough good ones; unknown is neither."""

    raised: bool = False
    bad: int = 0
    good: int = 0

    def after(self, outcome: Outcome, bad_needed: int, good_needed: int) -> Alarm:
        """The alarm with one more verdict."""
        if outcome is Outcome.UNKNOWN:
            return self
        if outcome is Outcome.BAD:
            return Alarm(self.raised or self.bad + 1 >= bad_needed, self.bad + 1, 0)
        return Alarm(self.raised and self.good + 1 < good_needed, 0, self.good + 1)


QUIET = Alarm()


@dataclass(frozen=True)
class Record:
    """What one engine answered to our generations; times are monotonic seconds.

    Its text is out of service (`raised`) when a third of the last answers was bad, and again in it
    after as many good ones in a row as were looked at; what relapses owes ever more.
    """

    judged: tuple[bool, ...] = ()  # the last answers, True for good
    good: int = 0  # in a row
    raised: bool = False
    falls: int = 0  # how often it was raised
    bad: tuple[Finding, ...] = ()  # what the last bad one had
    read_at: float = float("-inf")  # a text was judged
    scored_at: float = float("-inf")  # and judged in full
    asked_at: float = float("-inf")  # a generation ended, whatever it told
    unanswered: int = 0  # in a row, while nothing waited
    unanswered_since: float | None = None  # no answer and no step since
    silent: int = 0  # readings in a row with an open question and no step
    argmax_chance: float = 1.0  # that sampling gave nothing but top tokens since it last did not

    def after(self, outcome: Outcome, bad: tuple[Finding, ...], health: Health) -> Record:
        """The record with one more answer; one that told nothing changes nothing."""
        if outcome is Outcome.UNKNOWN:
            return self
        looked_at = ANSWERS_PER_BAD * health.bad_verdicts
        is_good = outcome is Outcome.GOOD
        judged = (*self.judged, is_good)[-looked_at:]
        good = self.good + 1 if is_good else 0
        kept = replace(self, judged=judged, good=good, bad=self.bad if is_good else bad)
        if self.raised:
            owed = looked_at * 2 ** min(self.falls - 1, MOST_DOUBLINGS)
            return replace(kept, raised=good < owed)
        if judged.count(False) < health.bad_verdicts:
            return kept
        return replace(kept, raised=True, falls=self.falls + 1)

    @property
    def doubted(self) -> bool:
        """One more answer is wanted at once: a late one was bad, or none came."""
        return not all(self.judged) or self.unanswered > 0 or self.unanswered_since is not None


@dataclass(frozen=True)
class EngineMemory:
    """What is known of one engine: its last sample, when it last made a step, its acceptance.

    `unmoved` counts the readings in a row in which it had work and made no step, `absent` those
    that did not show it.
    """

    sample: EngineSample
    moved_at: float
    work_since: float | None = None
    unmoved: int = 0
    absent: int = 0
    # Last seen with an empty queue, at a step or idle, while a generation of ours was out.
    free_at: float = float("-inf")
    writes: bool = False  # the last reading saw new tokens of it
    window: Speculation = NOTHING
    windows: tuple[Speculation, ...] = ()
    low: Alarm = Alarm()
    collapsed: Alarm = Alarm()
    high: Alarm = Alarm()
    undrafted: float = 0.0  # tokens of decode steps since a draft was counted
    not_drafting: Alarm = Alarm()

    @property
    def drafts_badly(self) -> bool:
        """One of the alarms over its acceptance stands."""
        return any(a.raised for a in (self.low, self.collapsed, self.high, self.not_drafting))

    def stuck_for(self, at: float) -> float:
        """Seconds since it should have made a step."""
        if self.work_since is None or not self.unmoved:
            return 0.0
        return at - max(self.work_since, self.moved_at)


def hysteresis(health: Health) -> tuple[int, int]:
    """How many bad looks in a row raise an alarm, and how many good ones end it."""
    return health.bad_verdicts, health.good_verdicts
