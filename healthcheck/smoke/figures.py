"""The few statistics of the smoke test: percentiles, and the interval of a ratio."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 2000


@dataclass(frozen=True)
class Spread:
    """A sample's size and percentiles, in the sample's unit; all 0 for an empty one."""

    count: int = 0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The percentiles by nearest rank: each is a value that was measured."""
        if not values:
            return cls()
        return cls(len(values), *(percentile(values, share) for share in (0.5, 0.9, 0.99)))


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of a sample that is not empty."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """The ratio of two means, with its 95 % bootstrap interval; the same values give the same.

    Raises ValueError if either sample is empty or sums to nothing.
    """
    if not above or not below or sum(below) <= 0:
        raise ValueError("a ratio needs two samples of positive figures")
    draw = random.Random(f"{list(above)}/{list(below)}")
    ratios = sorted(
        _mean(draw.choices(above, k=len(above)))
        / max(_mean(draw.choices(below, k=len(below))), 1e-9)
        for _ in range(RESAMPLES)
    )
    low, high = ratios[int(0.025 * RESAMPLES)], ratios[int(0.975 * RESAMPLES)]
    return _mean(above) / _mean(below), low, high


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
