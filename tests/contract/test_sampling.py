"""Whether what comes out follows the target distribution: real drafting, real rejection sampling.

The draft is the real AMD class, its weights set so that it predicts DRAFT; the target's logits are
those of TARGET. Everything is at fixed seeds, so a result repeats; the power says how little luck
the seeds needed.
"""

import functools
import math
import random

import pytest

from tests.contract.cases import DRAFT, SAMPLES, TARGET
from tests.support.amd_class import Answers
from tests.support.chi_square import p_value, power

pytestmark = pytest.mark.real

FAULT = 1e-3
"""A p-value below this says the distribution is wrong: one in a thousand seeds by chance."""

SOUND = 0.01
"""A p-value above this says nothing is wrong; shared noise gets there once in two thousand."""


SIMULATED = 100_000


@functools.cache
def with_shared_noise() -> list[float]:
    """What comes out, by simulation, if draft and residual draw the same Gumbel noise."""
    generator = random.Random(1)
    counts = [0] * len(TARGET)
    residual = [max(p - q, 0.0) for p, q in zip(TARGET, DRAFT, strict=True)]
    for _ in range(SIMULATED):
        noise = [-math.log(-math.log(generator.random())) for _ in TARGET]
        token = _argmax(DRAFT, noise)
        if generator.random() > TARGET[token] / DRAFT[token]:
            token = _argmax(residual, noise)
        counts[token] += 1
    return [count / SIMULATED for count in counts]


def _argmax(weights: list[float] | tuple[float, ...], noise: list[float]) -> int:
    scores = [
        math.log(weight) + value if weight else -math.inf
        for weight, value in zip(weights, noise, strict=True)
    ]
    return scores.index(max(scores))


def test_test_is_strong_enough() -> None:
    """The samples suffice to see shared noise with a chance above 99 %, at either threshold."""
    biased = with_shared_noise()
    assert power(SAMPLES, TARGET, biased, FAULT) > 0.99
    assert power(SAMPLES, TARGET, biased, SOUND) > 0.9995


def test_unpatched_output_is_biased(pristine: Answers) -> None:
    """With the attribute of PR 51145 alone, the output does not follow the target (PR 54282)."""
    counts = pristine["sample"]["emitted"][0]
    assert sum(counts) == SAMPLES
    assert p_value(counts, TARGET) < FAULT
    assert p_value(counts, with_shared_noise()) > SOUND


def test_patched_output_follows_the_target(patched: Answers) -> None:
    """With the series it does, at the same seeds."""
    counts = patched["sample"]["emitted"][0]
    assert sum(counts) == SAMPLES
    assert p_value(counts, TARGET) > SOUND


def test_patch_leaves_the_draft_and_acceptance_alone(pristine: Answers, patched: Answers) -> None:
    """Drafts follow the draft's own distribution either way, and as many are accepted."""
    rate = sum(map(min, DRAFT, TARGET))
    deviation = math.sqrt(rate * (1 - rate) / SAMPLES)
    for answers in (pristine, patched):
        assert p_value(answers["sample"]["drafted"], DRAFT) > SOUND
        assert abs(answers["sample"]["accepted"] / SAMPLES - rate) < 4 * deviation


def test_unpatched_nan_brings_a_neighbours_token(pristine: Answers) -> None:
    """NaN logits make one request say the token of the next one, or one outside the vocabulary."""
    assert pristine["nan bonus"]["said"] == [[3, 3, 7], [7, 7, 7]]
    assert pristine["nan bonus, last block in part"]["said"][0][2] >= 2500


@pytest.mark.parametrize("name", ["nan bonus", "nan bonus, last block in part", "nan greedy"])
def test_patched_nan_stays_with_its_request(name: str, patched: Answers) -> None:
    """With the series the token is some token of the vocabulary, and the neighbour is untouched."""
    vocabulary = {"nan bonus": 3072, "nan bonus, last block in part": 2500, "nan greedy": 3 * 8192}
    first, neighbour = patched[name]["said"]
    assert neighbour == [7, 7, 7]
    assert first[:-1] == [3] * (len(first) - 1)
    assert first[-1] != 7
    assert 0 <= first[-1] < vocabulary[name]


def test_nan_in_greedy_verification_accepts_no_draft(pristine: Answers, patched: Answers) -> None:
    """A draft is not accepted because the argmax of NaN fell on another row's token."""
    assert pristine["nan greedy"]["said"][0] == [3, 3, 3]
    assert len(patched["nan greedy"]["said"][0]) == 1
