"""Pearson's chi-square test, and how likely it finds a given deviation.

Closed forms for an even number of degrees of freedom, so that nothing but the standard library is
needed: compare distributions over an odd number of categories.
"""

import math
from collections.abc import Sequence


def p_value(counts: Sequence[int], expected: Sequence[float]) -> float:
    """The chance of counts at least this far off if they followed the `expected` probabilities.

    Counts of categories without an expected probability are refused: they would be proof by
    themselves. Raises `ValueError` for those, for an even number of categories, and for an expected
    count below 5, where the approximation is poor.
    """
    known, stray = counts[: len(expected)], counts[len(expected) :]
    total = sum(counts)
    if any(stray):
        raise ValueError(f"counts outside the expected categories: {stray}")
    if min(expected) * total < 5:
        raise ValueError(f"an expected count is below 5: {total} counts over {expected}")
    statistic = sum(
        (count - total * share) ** 2 / (total * share)
        for count, share in zip(known, expected, strict=True)
    )
    return _survival(statistic, len(expected) - 1)


def power(total: int, expected: Sequence[float], truth: Sequence[float], alpha: float) -> float:
    """The chance that `total` counts that follow `truth` have a p-value below `alpha`.

    The statistic is then noncentral chi-square: a Poisson mixture of central ones.
    """
    effect = sum((t - e) ** 2 / e for t, e in zip(truth, expected, strict=True))
    freedom = len(expected) - 1
    critical = _critical(alpha, freedom)
    half = total * effect / 2
    terms = int(half + 12 * math.sqrt(half) + 40)
    return sum(
        math.exp(k * math.log(half) - half - math.lgamma(k + 1))
        * _survival(critical, freedom + 2 * k)
        for k in range(terms)
    )


def _survival(statistic: float, freedom: int) -> float:
    if freedom % 2:
        raise ValueError(f"{freedom} degrees of freedom: give an odd number of categories")
    half = statistic / 2
    term = total = math.exp(-half)
    for k in range(1, freedom // 2):
        term *= half / k
        total += term
    return total


def _critical(alpha: float, freedom: int) -> float:
    low, high = 0.0, 1000.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _survival(middle, freedom) > alpha else (low, middle)
    return low
