"""What decides the answers beside drafting and sampling: the experts' clamp."""

import pytest

from tests.support.amd_class import Answers

pytestmark = pytest.mark.real


def test_unpatched_experts_lose_their_clamp(pristine: Answers) -> None:
    """0.27.1 as released hands AITER's kernel 0.0, "no clamp", although the model says 10."""
    assert pristine["clamp"] == {"limit": 10.0, "handed": [0.0]}


def test_patched_experts_are_clamped(patched: Answers) -> None:
    """With the series AITER's kernel is handed the model's limit."""
    assert patched["clamp"] == {"limit": 10.0, "handed": [10.0]}
