"""The long form of the statistical proof: every step, temperature, verification method, seed.

Run by `make prove`; the short form in test_sampling.py is part of `make test`.
"""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from patches.loadcheck import tiny
from tests.contract.cases import DRAFT, REQUESTS, SEED, TARGET, sample
from tests.support.amd_class import Answers, ask_both
from tests.support.chi_square import p_value
from tests.support.figures import show

pytestmark = [pytest.mark.real, pytest.mark.prove, pytest.mark.timeout(3 * 3600)]

DEADLINE_S = 3 * 3600.0
STEPS = 2
OTHER_DRAFT, OTHER_TARGET = (0.2, 0.5, 0.3), (0.45, 0.15, 0.4)
FAULT = 1e-6

CASES = {
    "plain": {"batches": 30},
    "another seed": {"batches": 15, "seed": SEED + 1},
    "temperature 0.7": {"batches": 15, "temperature": 0.7},
    "block verification": {"batches": 15, "block_verification": True},
    "other distributions": {"batches": 15, "draft": OTHER_DRAFT, "target": OTHER_TARGET},
}
BIASED = ("plain", "another seed", "temperature 0.7")
"""The cases that the unpatched tree is asked too."""


@pytest.fixture(scope="module")
def both(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Answers, Answers]:
    """The cases on the pristine tree and on the patched one; all p-values are printed."""
    folder: Path = tmp_path_factory.mktemp("proof")
    model = str(tiny.write_plain(folder / "model", vocab_size=8, block_size=STEPS))
    patched = {name: sample(model, steps=STEPS, **changes) for name, changes in CASES.items()}
    pristine = {name: patched[name] for name in BIASED}
    answers = ask_both(folder, pristine=pristine, patched=patched, deadline_s=DEADLINE_S)
    show(request, figures(*answers))
    return answers


def figures(pristine: Answers, patched: Answers) -> Iterator[str]:
    """What was found, a line a case: samples and p-value of each step, with and without series."""
    yield ""
    for name, case in CASES.items():
        target = case.get("target", TARGET)
        for series, answers in (("with", patched), ("without", pristine)):
            if name in answers:
                steps = answers[name]["emitted"]
                told = ", ".join(f"{sum(s)}: p={p_value(s, target):.3g}" for s in steps)
                yield f"proof: {name}, {series} the series: {told}"


@pytest.mark.parametrize("name", CASES)
def test_every_step_follows_the_target(name: str, both: tuple[Answers, Answers]) -> None:
    """Patched, each emitted token, given that its step is reached, follows the target."""
    counts = both[1][name]["emitted"]
    target = CASES[name].get("target", TARGET)
    assert sum(counts[0]) == CASES[name]["batches"] * REQUESTS
    # One in a hundred by chance over all steps of all cases.
    limit = 0.01 / (len(CASES) * (STEPS + 1))
    for step in counts:
        assert p_value(step, target) > limit


@pytest.mark.parametrize("name", BIASED)
def test_first_step_is_biased_without_the_series(name: str, both: tuple[Answers, Answers]) -> None:
    """Unpatched, the bias shows at other seeds and temperatures too."""
    assert p_value(both[0][name]["emitted"][0], TARGET) < FAULT


@pytest.mark.parametrize("name", [name for name in CASES if name != "block verification"])
def test_acceptance_is_as_computed(name: str, both: tuple[Answers, Answers]) -> None:
    """Token by token, a draft is accepted with the overlap of both distributions."""
    draft, target = CASES[name].get("draft", DRAFT), CASES[name].get("target", TARGET)
    rate = sum(map(min, draft, target))
    reached = [sum(step) for step in both[1][name]["emitted"]]
    for before, after in itertools.pairwise(reached):
        assert abs(after / before - rate) < 4.5 * math.sqrt(rate * (1 - rate) / before)
