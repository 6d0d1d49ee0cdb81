"""Scores of many tasks: a rate with its interval, judged against a floor, and what that can see."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from healthcheck.judge import Outcome
from healthcheck.judge.acceptance import Z_99, wilson

LEAST = 30  # answers; of fewer, Wilson bounds call too many servers bad
SURE = 0.9  # how often a fall has to be seen to say that it is
Z_90 = 1.2815515655446004  # one-sided 90 % of the normal distribution


@dataclass(frozen=True)
class Score:
    """How many tasks of a kind were right, of those answered; `failed` got no answer.

    `low` and `high` are Wilson bounds of the rate, each one-sided 99 %; `floor` is the rate below
    which a server is bad, by `source`.
    """

    name: str
    right: int
    answered: int
    failed: int
    floor: float
    source: str

    @property
    def rate(self) -> float:
        """Right ones of those answered, 0 without any."""
        return self.right / self.answered if self.answered else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The Wilson bounds of the rate."""
        return wilson(self.right, self.answered)

    @property
    def outcome(self) -> Outcome:
        """The verdict, UNKNOWN also where tasks without an answer could have changed it."""
        whole = self.answered + self.failed
        at_worst = verdict(self.right, whole, self.floor)
        at_best = verdict(self.right + self.failed, whole, self.floor)
        return at_best if at_best is at_worst else Outcome.UNKNOWN


def verdict(right: int, answered: int, floor: float) -> Outcome:
    """BAD if the whole interval is below the floor, which a server that solves as many as the floor
    says meets 3 times in 100 at most; GOOD from the floor on; UNKNOWN in between."""
    if not answered:
        return Outcome.UNKNOWN
    if answered >= LEAST and wilson(right, answered)[1] < floor:
        return Outcome.BAD
    return Outcome.GOOD if right / answered >= floor else Outcome.UNKNOWN


def chance_of_bad(tasks: int, floor: float, rate: float) -> float:
    """How often so many tasks call a server bad that solves each with probability `rate`."""
    worst = bisect_left(
        range(tasks + 1), True, key=lambda right: verdict(right, tasks, floor) is not Outcome.BAD
    )
    if rate <= 0 or rate >= 1:
        return float(worst > (tasks if rate >= 1 else 0))
    return math.fsum(math.exp(_log_chance(right, tasks, rate)) for right in range(worst))


def sees_below(tasks: int, floor: float) -> float:
    """The rate below which so many tasks call a server bad nine times in ten, to a thousandth."""
    rates = range(round(1000 * floor) + 1)
    first = bisect_left(rates, True, key=lambda n: chance_of_bad(tasks, floor, n / 1000) < SURE)
    return max(first - 1, 0) / 1000


def answers_to_tell(a: float, b: float) -> int:
    """The answers that are needed of each of two servers with these rates, to call the difference
    one 99 % surely nine times in ten (normal approximation)."""
    spread = a * (1 - a) + b * (1 - b)
    return math.ceil((Z_99 + Z_90) ** 2 * spread / (a - b) ** 2)


def told_from(tasks: int, rate: float) -> float:
    """The nearest lower rate, to a thousandth, that so many tasks of each of two servers tell from
    this one."""
    lower = range(math.ceil(1000 * rate))
    first = bisect_left(lower, True, key=lambda n: answers_to_tell(rate, n / 1000) > tasks)
    return max(first - 1, 0) / 1000


def _log_chance(right: int, tasks: int, rate: float) -> float:
    ways = math.lgamma(tasks + 1) - math.lgamma(right + 1) - math.lgamma(tasks - right + 1)
    return ways + right * math.log(rate) + (tasks - right) * math.log1p(-rate)
