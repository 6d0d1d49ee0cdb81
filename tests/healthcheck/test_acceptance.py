"""Acceptance: the Wilson bounds by the equation that defines them, and the edge of each judgement."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.recipe import Health
from healthcheck.client.exposition import Speculation
from healthcheck.judge import Outcome
from healthcheck.judge.acceptance import (
    COLLAPSED_LEAST,
    Z_99,
    Acceptance,
    collapsed,
    high,
    low,
    wilson,
)

FLOOR, CEILING = Health().acceptance_floor, Health().acceptance_ceiling


def window(drafts: float, *accepted_at: float) -> Speculation:
    return Speculation(drafts, drafts * 4, sum(accepted_at), accepted_at)


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_both_bounds_are_rates_that_the_sample_is_just_consistent_with(
    sample: tuple[int, int],
) -> None:
    """A bound is the rate whose score test is at exactly `z` deviations from what was seen."""
    successes, trials = sample
    rate = successes / trials
    lower, upper = wilson(successes, trials)
    assert 0.0 <= lower <= upper <= 1.0
    assert lower - 1e-12 <= rate <= upper + 1e-12
    for bound in (lower, upper):
        # At the ends of 0 to 1 the rate that was seen is a bound itself.
        if not math.isclose(bound, rate, abs_tol=1e-12):
            deviation = math.sqrt(bound * (1 - bound) / trials)
            assert abs(bound - rate) == pytest.approx(Z_99 * deviation)


def test_bounds_around_a_rate_that_is_no_end_are_apart() -> None:
    """Half of 200: both bounds are as far from it, and neither is it."""
    lower, upper = wilson(100, 200)
    assert (lower, upper) == pytest.approx((0.41884, 0.58116), abs=1e-5)


def test_nothing_tried_bounds_nothing() -> None:
    """Without a trial the rate may be anything."""
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("trials", [64, 103])
def test_bounds_stay_rates_whatever_the_rounding(trials: int) -> None:
    """None and all of a sample: the bounds are 0 and 1, not a rounding error beyond."""
    assert wilson(0, trials)[0] == pytest.approx(0.0, abs=1e-12)
    assert wilson(0, trials)[0] >= 0.0
    assert wilson(trials, trials)[1] == pytest.approx(1.0)
    assert wilson(trials, trials)[1] <= 1.0


def test_more_successes_than_trials_are_all_of_them() -> None:
    """Counters that are scraped one after the other may disagree by a draft."""
    assert wilson(70, 64) == wilson(64, 64)


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [
        (window(128, 5, 0), Outcome.BAD),
        (window(128, 93, 0), Outcome.GOOD),  # the later positions are another judgement
        (window(128, 0), Outcome.BAD),
        (window(8, 0, 0), Outcome.GOOD),  # too few to be sure
        (window(128), Outcome.UNKNOWN),
    ],
)
def test_low_looks_at_the_first_position(seen: Speculation, outcome: Outcome) -> None:
    """Low is what the first position accepts of the drafts, where it is sure to be under the floor."""
    assert low(seen, FLOOR) is outcome


def test_a_bound_that_meets_floor_or_ceiling_is_not_beyond_it() -> None:
    """Floor and ceiling themselves are inside the band."""
    seen = window(128, 20)
    lower, upper = wilson(20, 128)
    assert low(seen, upper) is Outcome.GOOD
    assert low(seen, math.nextafter(upper, 1)) is Outcome.BAD
    assert high([seen], lower) is Outcome.GOOD
    assert high([seen], math.nextafter(lower, 0)) is Outcome.BAD


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [
        (window(200, 150, 0), Outcome.BAD),
        (window(200, 150, 0, 0, 0), Outcome.BAD),
        (window(200, 150, 75, 0, 0), Outcome.GOOD),  # it wanes, as it should
        (window(200, COLLAPSED_LEAST, 0), Outcome.GOOD),  # enough to judge, too few to be sure
        (window(200, COLLAPSED_LEAST - 1, 0), Outcome.UNKNOWN),
        (window(200, 150), Outcome.UNKNOWN),  # a draft of one token
        (window(200), Outcome.UNKNOWN),
    ],
)
def test_collapsed_looks_at_the_second_position(seen: Speculation, outcome: Outcome) -> None:
    """Collapsed is the second position as good as never accepting what the first one did."""
    assert collapsed(seen) is outcome


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [
        ([window(536, 536, 300)], Outcome.BAD),
        ([window(535, 535, 535)], Outcome.GOOD),  # one draft short of being sure
        ([window(134, 134)] * 4, Outcome.BAD),  # which one window alone is not
        ([window(134, 134)], Outcome.GOOD),
        ([window(134, 134)] * 3 + [window(134, 100)], Outcome.GOOD),
        ([window(128)], Outcome.UNKNOWN),
        ([], Outcome.UNKNOWN),
    ],
)
def test_high_needs_several_windows(seen: list[Speculation], outcome: Outcome) -> None:
    """High is the first position over all windows, where it is sure to be above the ceiling."""
    assert high(seen, CEILING) is outcome


def test_counters_as_rates() -> None:
    """Per draft token, per step, and per draft at each position with the bounds of each."""
    assert Acceptance.of(Speculation(200.0, 800.0, 180.0, (120.0, 60.0))) == Acceptance(
        drafts=200,
        draft_tokens=800,
        rate=0.225,
        length=1.9,
        per_position=(0.6, 0.3),
        intervals=(wilson(120, 200), wilson(60, 200)),
    )


@pytest.mark.parametrize(
    ("counted", "drafted"),
    [
        (Speculation(), None),
        (Speculation(0.0, 4.0), None),
        (Speculation(1.0, 0.0), None),
        (Speculation(1.0, 1.0), 1.0),
        (Speculation(2.0, 8.0), 4.0),
    ],
)
def test_rates_need_a_draft(counted: Speculation, drafted: float | None) -> None:
    """Without a draft, or a token of one, there is no rate; with one there is."""
    seen = Acceptance.of(counted)
    assert (None if seen is None else seen.drafted_per_step) == drafted
