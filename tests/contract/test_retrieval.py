"""What the sparse indexer of DeepSeek V4 picks past 2,048 tokens, on each AMD card that is played.

Kernels of writer, queries and readers are vLLM's, interpreted; AITER, top-k and the card are
stand-ins (tests/support/amd_class_retrieval.py says which). The long form is test_retrieval_proof.py.
"""

from statistics import mean

import pytest

from patches.loadcheck.card import CARDS
from tests.support.amd_class import Answers

pytestmark = pytest.mark.real

LENGTHS = (4096, 2048, 1024, 4096)
"""Tokens that each request of `lengths` sees: three decodes, then a prefill of seven queries."""

ENOUGH = 0.99
"""Recall that a right reader has; less than 1 leaves room for ties of scores."""


@pytest.mark.parametrize("arch", CARDS)
def test_patched_finds_the_right_keys(arch: str, patched: Answers) -> None:
    """Decode and prefill pick what float attention picks, below and above 2,048 tokens."""
    found = patched[f"lengths {arch}"]
    assert found["kinds"] == [3, 1]
    assert min(mean(recall) for recall in found["recall"]) >= ENOUGH


@pytest.mark.parametrize("arch", CARDS)
def test_patched_gathers_keys_as_they_were_written(arch: str, patched: Answers) -> None:
    """The values themselves, in the format of each card; releases that are right without the series
    halve them on gfx942, which changes no order."""
    assert patched[f"lengths {arch}"]["as_written"] >= ENOUGH


def test_unpatched_finds_the_right_keys_by_chance(pristine: Answers) -> None:
    """Up to 2,048 tokens all keys are picked; at 4,096 half are, and half of the right ones."""
    found = pristine["lengths gfx950"]
    for length, recall in zip(LENGTHS, found["recall"], strict=True):
        expected = 1.0 if length <= 2048 else pytest.approx(0.5, abs=0.1)
        assert mean(recall) == expected
    assert found["as_written"] == 0.0


def test_no_decode_of_v4_goes_through_aiter(pristine: Answers, patched: Answers) -> None:
    """AITER's paged kernel, which reaches 2 GiB before 0.1.20, is left with the series."""
    for name in ("lengths gfx950", "far"):
        assert pristine[name]["aiter_paged_calls"] == 1
        assert patched[name]["aiter_paged_calls"] == 0


def test_patched_reads_pages_past_2_gib_and_negative_zero(
    pristine: Answers, patched: Answers
) -> None:
    """Pages whose place does not fit 32 bits, and keys with OCP's -0, are found on gfx942."""
    assert min(mean(recall) for recall in patched["far"]["recall"]) >= ENOUGH
    assert patched["far"]["as_written"] >= ENOUGH
    assert max(mean(recall) for recall in pristine["far"]["recall"]) < 0.6


def test_patched_scores_end_with_the_context(patched: Answers) -> None:
    """Beyond a decode's context every score is -inf, whatever the workspace held, and so is NaN."""
    for name in ("lengths gfx942", "lengths gfx950", "far", "native"):
        assert patched[name]["left_over"] == 0, name
        assert patched[name]["nan_in_decode"] == 0, name


@pytest.mark.parametrize("name", ["lengths gfx942", "lengths gfx950", "far", "budget"])
def test_patched_scores_are_those_of_float_attention(name: str, patched: Answers) -> None:
    """Scores have the right size, and not only the right order, in the format of each card."""
    assert patched[name]["error"] < 1e-3


def test_patched_takes_a_length_for_each_query(patched: Answers) -> None:
    """Two queries of one row, vLLM's native layout for one draft, each see their own context."""
    assert patched["native"]["kinds"] == [2, 0]
    assert min(mean(recall) for recall in patched["native"]["recall"]) >= ENOUGH


def test_unpatched_chunk_is_larger_than_its_workspace(pristine: Answers) -> None:
    """Many prefix hits in one step: top-k reads what is no score of any key (PR 51252)."""
    assert pristine["budget"]["not_scores_read"] > 0


def test_patched_chunk_fits_its_workspace(patched: Answers) -> None:
    """With the series the same step is cut in two, and every request finds its keys."""
    assert patched["budget"]["not_scores_read"] == 0
    assert min(map(min, patched["budget"]["recall"])) == 1.0


def test_v3_2_reads_its_tiles_as_before(pristine: Answers, patched: Answers) -> None:
    """A cache that the op writes itself stays tiled, and its decode stays with AITER."""
    for answers in (pristine, patched):
        assert answers["tiled"]["aiter_paged_calls"] == 1
        assert min(map(min, answers["tiled"]["recall"])) == 1.0
