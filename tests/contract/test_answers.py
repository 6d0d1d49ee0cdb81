"""What decides the answers beside sampling: experts' clamp, chats, where KV is written and cleared."""

from typing import Any

import pytest

from tests.contract.cases import DRAFT_CACHE, DRAFT_STEPS, ORACLE, chat_requests
from tests.support.amd_class import Answers

pytestmark = pytest.mark.real

Key = tuple[str, int, str | None]

BEGIN, ASSISTANT = "<｜begin▁of▁sentence｜>", "<｜User｜>w1<｜Assistant｜>"
SAID_BEFORE = {
    "low": "",
    "high": "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n",
    "max": "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n",
}
"""How the paragraph begins that the checkpoint of 0731 reads before a chat, by effort."""

MEANS = {
    None: "high",
    "minimal": "low",
    "low": "low",
    "medium": "low",
    "high": "high",
    "xhigh": "high",
    "max": "max",
}
"""What a request's effort means to that checkpoint, when it thinks."""


def test_unpatched_experts_lose_their_clamp(pristine: Answers) -> None:
    """0.27.1 as released hands AITER's kernel 0.0, "no clamp", although the model says 10."""
    assert pristine["clamp"] == {"limit": 10.0, "handed": [0.0]}


def test_patched_experts_are_clamped(patched: Answers) -> None:
    """With the series AITER's kernel is handed the model's limit."""
    assert patched["clamp"] == {"limit": 10.0, "handed": [10.0]}


def _rendered(answers: Answers, name: str = "chat") -> dict[Key, Any]:
    """Prompt and whether thoughts are expected, by conversation, switch and effort."""
    return dict(zip(chat_requests(), answers[name], strict=True))


def test_unpatched_chats_are_encoded_for_the_preview(pristine: Answers, patched: Answers) -> None:
    """0.27.1 as released differs from 0.28.0 wherever a chat thinks with high, max or no effort."""
    ours, theirs = _rendered(pristine), _rendered(patched, "chat of the oracle")
    differ = {key for key in ours if ours[key] != theirs[key]}
    assert differ == {
        key for key, (_, thinks) in theirs.items() if thinks and key[2] in (None, "high", "max")
    }
    assert not any(SAID_BEFORE["max"] in prompt for prompt, _ in ours.values())


def test_patched_chats_are_encoded_as_the_next_release_does(patched: Answers) -> None:
    """With the series every effort, switch and conversation gives the prompt of 0.28.0."""
    assert ORACLE == "0.28.0"
    assert _rendered(patched) == _rendered(patched, "chat of the oracle")


def test_patched_chats_say_what_the_checkpoint_reads(patched: Answers) -> None:
    """Each effort has its paragraph, a chat thinks unless told not to, and `none` is not to."""
    rendered = _rendered(patched)
    for effort, means in MEANS.items():
        prompt, _ = rendered["plain", 0, effort]
        assert prompt.startswith(BEGIN + (SAID_BEFORE[means] or ASSISTANT)), effort
        assert prompt.endswith(f"{ASSISTANT}<think>"), effort
    assert rendered["plain", 0, "none"][0] == f"{BEGIN}{ASSISTANT}</think>"


def test_thoughts_are_expected_where_the_prompt_ends_in_them(patched: Answers) -> None:
    """Parser and prompt agree, or thoughts would be content, and content thoughts."""
    for key, (prompt, thinks) in _rendered(patched).items():
        assert prompt.endswith("<think>") == thinks, key


PAD = -1
LENGTH = DRAFT_CACHE["max_model_len"]


def _steps(answers: Answers) -> dict[str, Any]:
    return dict(zip(DRAFT_STEPS, answers["draft rows"], strict=True))


def _slot(name: str, position: int) -> int:
    """Where the KV of a live position belongs: nowhere without a block, or past the model's end."""
    size, blocks = DRAFT_CACHE["block_size"], DRAFT_STEPS[name]["blocks"]
    if position >= LENGTH or not blocks[position // size]:
        return PAD
    return int(blocks[position // size] * size + position % size)


def test_unpatched_draft_kv_is_written_where_nobody_owns_it(pristine: Answers) -> None:
    """0.27.1 as released writes to the null block, for rejected tokens, and past the model's end."""
    steps = _steps(pristine)
    size = DRAFT_CACHE["block_size"]
    evicted = [slot for slot in steps["window"]["context"] if slot < size]
    assert evicted == [3, 0, 1, 2, 3]  # positions 3 to 7, all in block 0
    assert PAD not in steps["rejected"]["context"]
    own, somebody_elses = 16 * size, 17 * size
    last = [own + 1, own + 2, own + 3]  # positions 29 to 31
    assert steps["end"]["queries"] == [*last, somebody_elses, somebody_elses + 1]
    assert steps["end"]["length"] == LENGTH + 2


def test_patched_draft_kv_is_written_for_live_positions_only(patched: Answers) -> None:
    """With the series every other row gets the padding's slot, and the length ends at the model's."""
    for name, found in _steps(patched).items():
        positions = DRAFT_STEPS[name]["positions"]
        live = len(positions) - DRAFT_STEPS[name]["rejected"]
        rejected = [PAD] * DRAFT_STEPS[name]["rejected"]
        assert found["context"] == [_slot(name, at) for at in positions[:live]] + rejected, name
        after = range(positions[live - 1] + 1, positions[live - 1] + 1 + DRAFT_CACHE["queries"])
        assert found["queries"] == [_slot(name, at) for at in after], name
        assert found["length"] == min(after.stop, LENGTH), name


def test_a_step_of_live_positions_is_left_as_it_was(pristine: Answers, patched: Answers) -> None:
    """Nothing rejected, nothing evicted, far from the end: the same slots with and without."""
    assert _steps(pristine)["decode"] == _steps(patched)["decode"]


def test_unpatched_a_page_that_is_cleared_takes_keys_of_the_next(pristine: Answers) -> None:
    """0.27.1 as released clears from each layer's offset on: the next page loses what lies before
    the last layer, here 64 keys of 584 bytes."""
    _, page, following, _ = pristine["cleared"]
    assert (page, following) == (64 * (584 + 132), 64 * 584)


def test_patched_a_page_is_cleared_alone(pristine: Answers, patched: Answers) -> None:
    """With the series the same page is cleared as a whole, and no byte of another."""
    assert patched["cleared"] == [0, pristine["cleared"][1], 0, 0]
