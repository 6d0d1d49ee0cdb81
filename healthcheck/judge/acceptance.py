"""Judges windows of draft acceptance: too low, collapsed after the first position, too high.

The unit is position 0 per draft: one draft, accepted there or not. A window is bad only if a
one-sided 99 % Wilson bound clears the profile's floor or ceiling, so few drafts are never bad.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from healthcheck.client.exposition import Speculation
from healthcheck.judge import Outcome

Z_99 = 2.3263478740408408  # one-sided 99 % of the normal distribution
# Of the drafts accepted at position 0, position 1 accepts more than half when healthy (43 % over
# five positions beside 73 % at the first, PR 51145) and none when the later positions are broken.
COLLAPSED_FLOOR = 0.05
COLLAPSED_LEAST = 64
# Near 1 a bound needs more drafts than near the floor: 0.99 is cleared by 536 of 536.
WINDOWS_KEPT = 8


def wilson(successes: float, trials: float, z: float = Z_99) -> tuple[float, float]:
    """The Wilson score bounds of a rate; each is one-sided at the level of `z`."""
    if trials <= 0:
        return 0.0, 1.0
    rate = min(max(successes / trials, 0.0), 1.0)
    square = z * z / trials
    middle = rate + square / 2
    spread = z * math.sqrt(rate * (1 - rate) / trials + square / (4 * trials))
    return max((middle - spread) / (1 + square), 0.0), min((middle + spread) / (1 + square), 1.0)


@dataclass(frozen=True)
class Acceptance:
    """Counters as rates: fractions, `length` in tokens per step (1 + accepted per draft),
    `intervals` Wilson bounds by position, each one-sided 99 %."""

    drafts: int
    draft_tokens: int
    rate: float
    length: float
    per_position: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, counted: Speculation) -> Acceptance | None:
        """The rates of counters, None without a draft."""
        if counted.drafts <= 0 or counted.draft_tokens <= 0:
            return None
        return cls(
            drafts=int(counted.drafts),
            draft_tokens=int(counted.draft_tokens),
            rate=counted.accepted / counted.draft_tokens,
            length=1 + counted.accepted / counted.drafts,
            per_position=tuple(n / counted.drafts for n in counted.accepted_at),
            intervals=tuple(wilson(n, counted.drafts) for n in counted.accepted_at),
        )

    @property
    def drafted_per_step(self) -> float:
        """The K that the server drafts with."""
        return self.draft_tokens / self.drafts


def low(window: Speculation, floor: float) -> Outcome:
    """BAD if acceptance at position 0 is under the floor."""
    if not window.accepted_at:
        return Outcome.UNKNOWN
    upper = wilson(window.accepted_at[0], window.drafts)[1]
    return Outcome.BAD if upper < floor else Outcome.GOOD


def collapsed(window: Speculation) -> Outcome:
    """BAD if what passes position 0 is as good as never accepted at position 1."""
    if len(window.accepted_at) < 2 or window.accepted_at[0] < COLLAPSED_LEAST:
        return Outcome.UNKNOWN
    upper = wilson(window.accepted_at[1], window.accepted_at[0])[1]
    return Outcome.BAD if upper < COLLAPSED_FLOOR else Outcome.GOOD


def high(windows: Sequence[Speculation], ceiling: float) -> Outcome:
    """BAD if acceptance at position 0 over the last windows is above the ceiling."""
    total = Speculation()
    for window in windows:
        total = total.plus(window)
    if not total.accepted_at:
        return Outcome.UNKNOWN
    lower = wilson(total.accepted_at[0], total.drafts)[0]
    return Outcome.BAD if lower > ceiling else Outcome.GOOD
