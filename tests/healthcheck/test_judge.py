"""The judge, on real answers of vLLM 0.27.1 and on faults made of them."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthcheck.answers import Answer, Failure, FailureKind
from healthcheck.exposition import Speculation
from healthcheck.judge import (
    CHANCE,
    Completion,
    Counters,
    Finding,
    Outcome,
    differs,
    judge,
    period,
    read,
    worst,
)

DATA = Path(__file__).parent / "data"
COMPLETION = json.loads((DATA / "completion.json").read_text())["body"]
CHAT = json.loads((DATA / "chat.json").read_text())["body"]
BAD_MODELS = json.loads((DATA / "bad_models.json").read_text())
BAD_INPUT = json.loads((DATA / "bad_input.json").read_text())
TOKENS = len(COMPLETION["choices"][0]["token_ids"])
DRAFTED = Counters(Speculation(4, 16, 15, (4, 4, 4, 3)), Speculation(12, 48, 31, (10, 8, 7, 6)))


def answer(body: Any, status: int = 200) -> Answer:
    text = body if isinstance(body, str) else json.dumps(body)
    return Answer(status, text.encode())


def mutated(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    body = copy.deepcopy(COMPLETION)
    change(body["choices"][0])
    return body


def by_check(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    return {f.check: f for f in findings}


def test_a_real_sampled_completion_passes_every_check() -> None:
    """The capture of a healthy server is good in every check, with evidence."""
    findings, completion = judge(answer(COMPLETION), asked_tokens=TOKENS, counters=DRAFTED)
    assert {f.outcome for f in findings} == {Outcome.GOOD}
    assert set(by_check(findings)) == {
        "real tokens",
        "variety",
        "logprobs",
        "sampling",
        "drafting",
    }
    assert by_check(findings)["drafting"].evidence["drafts"] == 8
    assert completion is not None
    assert completion.tokens == tuple(COMPLETION["choices"][0]["token_ids"])


def test_tokens_that_share_their_text_do_not_hide_the_sampled_one() -> None:
    """Two tokens of empty text share a key in top_logprobs; the highest logprob is still read."""
    completion = read(answer(COMPLETION))
    assert isinstance(completion, Completion)
    assert completion.top is not None and completion.logprobs is not None
    assert completion.logprobs[15] == pytest.approx(-7.631, abs=1e-3)
    assert completion.top[15] == pytest.approx(-2.350, abs=1e-3)
    assert all(t >= v for t, v in zip(completion.top, completion.logprobs, strict=True))


def test_nan_weights_are_the_models_fault() -> None:
    """The 400 of a model that computes NaN is bad, and not blamed on the probe."""
    seen = BAD_MODELS["target_nan"]["logprobs_t1"]
    findings, _ = judge(answer(seen["body"], seen["status"]), asked_tokens=12)
    assert [(f.outcome, f.code) for f in findings] == [(Outcome.BAD, "numerics.nan")]


def test_nan_weights_without_logprobs_show_as_empty_text() -> None:
    """The 200 with an empty text that NaN weights give is bad."""
    seen = BAD_MODELS["target_nan"]["plain_t1"]
    findings, _ = judge(answer(seen["body"], seen["status"]), asked_tokens=12, scored=False)
    assert by_check(findings)["real tokens"].code == "text.empty"
    assert worst(findings) is Outcome.BAD


def test_a_dead_head_is_seen_by_its_constant_logprobs() -> None:
    """A zeroed lm_head samples random tokens; only that all logprobs are equal gives it away."""
    seen = BAD_MODELS["target_zero"]["logprobs_t1"]
    findings, _ = judge(answer(seen["body"]), asked_tokens=12)
    assert by_check(findings)["real tokens"].outcome is Outcome.GOOD
    assert by_check(findings)["variety"].outcome is Outcome.GOOD
    assert by_check(findings)["logprobs"].code == "numerics.constant"


def test_a_dead_head_at_temperature_0_repeats_one_token() -> None:
    """The greedy answer of a dead head is one token over and over."""
    seen = BAD_MODELS["target_zero"]["logprobs_t0"]
    findings, _ = judge(answer(seen["body"]), asked_tokens=12)
    assert by_check(findings)["variety"].code == "text.one_token"


def test_a_chat_answer_is_judged_too() -> None:
    """The captured chat completion is read with its logprobs and is good."""
    findings, completion = judge(answer(CHAT), asked_tokens=12, scored=False)
    assert completion is not None and len(completion.tokens) == 12
    assert worst(findings) is Outcome.GOOD


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_without_content_counts_as_output(field: str) -> None:
    """A thinking answer has content null; its reasoning is real text."""
    body = copy.deepcopy(CHAT)
    body["choices"][0]["message"]["content"] = None
    body["choices"][0]["message"][field] = "Let me think about rivers."
    findings, _ = judge(answer(body), asked_tokens=12, scored=False)
    assert worst(findings) is Outcome.GOOD


def test_a_chat_answer_with_neither_is_empty() -> None:
    """Content and reasoning both null is an empty text."""
    body = copy.deepcopy(CHAT)
    body["choices"][0]["message"]["content"] = None
    findings, _ = judge(answer(body), asked_tokens=12, scored=False)
    assert by_check(findings)["real tokens"].code == "text.empty"


def make_greedy(choice: dict[str, Any]) -> None:
    block = choice["logprobs"]
    best = [max(t.items(), key=lambda item: item[1]) for t in block["top_logprobs"]]
    block["token_logprobs"] = [value for _, value in best]
    block["tokens"] = [name for name, _ in best]
    block["top_logprobs"] = [{name: value} for name, value in best]


def make_loop(choice: dict[str, Any]) -> None:
    choice["token_ids"] = [7, 8, 9] * (TOKENS // 3)


def make_nan(choice: dict[str, Any]) -> None:
    choice["logprobs"]["token_logprobs"][3] = math.nan


def make_infinite(choice: dict[str, Any]) -> None:
    choice["logprobs"]["token_logprobs"][3] = -9999.0


def make_constant(choice: dict[str, Any]) -> None:
    choice["logprobs"]["token_logprobs"] = [-0.0] * TOKENS


def make_short(choice: dict[str, Any]) -> None:
    choice["token_ids"] = choice["token_ids"][:5]


def make_blank(choice: dict[str, Any]) -> None:
    choice["text"] = "\ufffd\ufffd \n"


@pytest.mark.parametrize(
    ("change", "check", "code"),
    [
        (make_greedy, "sampling", "sampling.greedy"),
        (make_loop, "variety", "text.loop"),
        (make_nan, "logprobs", "numerics.not_finite"),
        (make_infinite, "logprobs", "numerics.not_finite"),
        (make_constant, "logprobs", "numerics.constant"),
        (make_short, "real tokens", "text.missing_tokens"),
        (make_blank, "real tokens", "text.empty"),
    ],
)
def test_each_fault_is_named(
    change: Callable[[dict[str, Any]], None], check: str, code: str
) -> None:
    """One fault put into the healthy capture is bad under its own reason."""
    findings, _ = judge(answer(mutated(change)), asked_tokens=TOKENS, counters=DRAFTED)
    found = by_check(findings)[check]
    assert (found.outcome, found.code) == (Outcome.BAD, code)
    assert worst(findings) is Outcome.BAD


def test_argmax_of_a_nearly_certain_text_is_inconclusive() -> None:
    """If argmax was likely anyway, an all-argmax text proves nothing and does not fail."""

    def change(choice: dict[str, Any]) -> None:
        make_greedy(choice)
        block = choice["logprobs"]
        sure = [-0.01 - i / 1000 for i in range(TOKENS)]
        block["token_logprobs"] = sure
        block["top_logprobs"] = [{n: v} for n, v in zip(block["tokens"], sure, strict=True)]

    findings, _ = judge(answer(mutated(change)), asked_tokens=TOKENS, counters=DRAFTED)
    assert by_check(findings)["sampling"].outcome is Outcome.UNKNOWN
    assert worst(findings) is Outcome.GOOD


@pytest.mark.parametrize(
    ("counters", "outcome", "code"),
    [
        (Counters(absent=True), Outcome.BAD, "speculation.absent"),
        (
            Counters(Speculation(4, 16, 8), Speculation(4, 16, 8)),
            Outcome.BAD,
            "speculation.not_drafting",
        ),
        (Counters(), Outcome.UNKNOWN, "metrics.unavailable"),
        (Counters(Speculation(9, 36, 8), Speculation(4, 16, 8)), Outcome.UNKNOWN, "engine.new"),
    ],
)
def test_the_draft_counter_must_rise(counters: Counters, outcome: Outcome, code: str) -> None:
    """No counter is bad, a still one is bad, an unreadable one leaves the answer undecided."""
    findings, _ = judge(answer(COMPLETION), asked_tokens=TOKENS, counters=counters)
    found = by_check(findings)["drafting"]
    assert (found.outcome, found.code) == (outcome, code)
    assert worst(findings) is outcome


@pytest.mark.parametrize(
    ("status", "outcome", "code"),
    [
        (301, Outcome.UNKNOWN, "server.redirect"),
        (401, Outcome.UNKNOWN, "config.unauthorized"),
        (403, Outcome.UNKNOWN, "config.unauthorized"),
        (404, Outcome.UNKNOWN, "config.wrong_model"),
        (429, Outcome.UNKNOWN, "server.overloaded"),
        (500, Outcome.BAD, "server.error"),
        (503, Outcome.UNKNOWN, "server.overloaded"),
    ],
)
def test_statuses_are_told_apart(status: int, outcome: Outcome, code: str) -> None:
    """Only an error of the server itself is bad; configuration and load are not."""
    findings, completion = judge(answer("{}", status), asked_tokens=8)
    assert [(f.outcome, f.code) for f in findings] == [(outcome, code)]
    assert completion is None


@pytest.mark.parametrize(
    "name", ["max_tokens_0", "too_long", "empty_prompt", "logprobs_99", "oov_token", "min_p"]
)
def test_a_refused_request_is_the_probes_fault(name: str) -> None:
    """Every captured 400 but the NaN one says that the probe asked wrongly: unknown."""
    seen = BAD_INPUT[name]
    findings, _ = judge(answer(seen["body"], seen["status"]), asked_tokens=8)
    assert [(f.outcome, f.code) for f in findings] == [(Outcome.UNKNOWN, "probe.rejected")]


@pytest.mark.parametrize(
    ("kind", "code"),
    [(FailureKind.TIMEOUT, "generation.timeout"), (FailureKind.RESET, "generation.failed")],
)
def test_no_answer_is_unknown(kind: FailureKind, code: str) -> None:
    """A time-out or a cut connection judges nothing."""
    findings, _ = judge(Failure(kind, "detail"), asked_tokens=8)
    assert [(f.outcome, f.code) for f in findings] == [(Outcome.UNKNOWN, code)]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "null",
        "[]",
        '{"choices": []}',
        '{"choices": [{"text": 7}]}',
        '{"choices": [{"text": "a", "logprobs": {"token_logprobs": [null], "tokens": ["a"]}}]}',
        "[" * 100_000,
    ],
)
def test_an_answer_that_is_no_completion_is_unknown(body: str) -> None:
    """Truncated, foreign or hostile JSON is a malformed answer, never an exception."""
    findings, completion = judge(answer(body), asked_tokens=8)
    assert completion is None
    assert [(f.outcome, f.code) for f in findings] == [(Outcome.UNKNOWN, "answer.malformed")]


def test_two_seeds_must_differ() -> None:
    """The same improbable text under two seeds is bad; a different one is good."""
    first = read(answer(COMPLETION))
    assert isinstance(first, Completion)
    other = Completion(first.text, tuple(reversed(first.tokens)), first.logprobs, first.top)
    assert differs(first, other).outcome is Outcome.GOOD
    assert differs(first, first).outcome is Outcome.BAD
    sure = Completion("yes", (1, 2), (-0.01, -0.02), (-0.01, -0.02))
    assert differs(sure, sure).outcome is Outcome.UNKNOWN


@given(st.lists(st.integers(0, 3), max_size=6).filter(bool), st.integers(8, 20))
def test_any_repeated_run_is_a_loop(run: list[int], times: int) -> None:
    """A run repeated eight times or more is always found."""
    assert period(run * times) is not None


@given(st.lists(st.integers(), min_size=8, max_size=64, unique=True))
def test_distinct_tokens_are_no_loop(tokens: list[int]) -> None:
    """A text without a repeated token is never a loop."""
    assert period(tokens) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
        lambda children: (
            st.lists(children, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    ["choices", "text", "logprobs", "token_ids", "message", "content", "usage"]
                ),
                children,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_judged_without_an_exception(body: Any) -> None:
    """Whatever JSON comes with a 200, the judge returns findings."""
    findings, _ = judge(answer(json.dumps(body)), asked_tokens=8, counters=Counters())
    assert findings
    worst(findings)


def test_a_dead_head_is_not_called_greedy() -> None:
    """With every token equally likely each is a top one: the logprobs are bad, sampling is not."""

    def flatten(choice: dict[str, Any]) -> None:
        block = choice["logprobs"]
        block["token_logprobs"] = [-6.93] * len(block["token_logprobs"])
        block["top_logprobs"] = [dict.fromkeys(row, -6.93) for row in block["top_logprobs"]]

    found = by_check(judge(answer(mutated(flatten)), asked_tokens=TOKENS)[0])
    assert found["logprobs"].code == "numerics.constant"
    assert found["sampling"].outcome is Outcome.UNKNOWN
    assert (
        CHANCE not in found["sampling"].evidence
    )  # or several of them together were called greedy
