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

from healthcheck.client.answers import Answer, Failure, FailureKind
from healthcheck.client.exposition import Speculation
from healthcheck.judge import (
    ARGMAX_CHANCE,
    CHANCE,
    NAN_MESSAGE,
    Completion,
    Counters,
    Finding,
    Outcome,
    differs,
    judge,
    ladder,
    missed,
    period,
    read,
    together,
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
    """A time-out or a cut connection judges nothing; why there was no answer is in the evidence."""
    findings, _ = judge(Failure(kind, "closed"), asked_tokens=8)
    evidence = {"kind": kind, "detail": "closed"}
    assert findings == (Finding("answer", Outcome.UNKNOWN, code, evidence),)


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
        '{"choices": [{"text": "a"}], "usage": {"completion_tokens": 1e999}}',
        '{"choices": [{"text": "a"}], "usage": {"completion_tokens": 1000000000000}}',
        '{"choices": [{"text": "a"}], "usage": {"completion_tokens": -1}}',
        f'{{"choices": [{{"text": "a", "token_ids": [1], "logprobs": {{"token_logprobs": [{10**400}],'
        ' "tokens": ["a"]}}]}',
    ],
)
def test_an_answer_that_is_no_completion_is_unknown(body: str) -> None:
    """Truncated, foreign or hostile JSON is a malformed answer, never an exception."""
    findings, completion = judge(answer(body), asked_tokens=8)
    assert completion is None
    assert [(f.outcome, f.code) for f in findings] == [(Outcome.UNKNOWN, "answer.malformed")]


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


# --- answers made to measure ----------------------------------------------------------------------

WORDS = ("one", "two", "three", "four", "five", "six")


def made(
    values: tuple[float, ...] = (-1.5, -2.0, -4.0, -0.5, -3.0, -1.0),
    tops: tuple[float, ...] | None = (-1.5, -1.0, -4.0, -0.5, -3.0, -1.0),
    ids: list[int] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A completion of one token for each of `values`; `changes` are laid over its choice."""
    names = [WORDS[i % len(WORDS)] for i in range(len(values))]
    block: dict[str, Any] = {"tokens": names, "token_logprobs": list(values)}
    if tops is not None:
        block["top_logprobs"] = [{"best": top} for top in tops]
    choice = {
        "text": " ".join(names),
        "logprobs": block,
        "token_ids": list(range(len(values))) if ids is None else ids,
        **changes,
    }
    return {"choices": [choice], "usage": {"completion_tokens": len(values)}}


def found_in(body: Any, check: str, **asked: Any) -> Finding:
    findings, _ = judge(answer(body), **{"asked_tokens": 6, **asked})
    return by_check(findings)[check]


NUMBERS = {"tokens": 6, "asked": 6, "characters": 27}
SURE = (-0.25, -0.5, -0.25, -0.5, -0.25, -0.5)
UNSURE = (-4.0, -3.0, -4.0, -3.0, -4.0, -3.0)
DRAFTING = {"drafts": 8, "draft_tokens": 32, "accepted": 16, "accepted_at": [6, 4, 3, 3]}


@pytest.mark.parametrize(
    ("body", "asked", "expected"),
    [
        (made(), {}, Finding("real tokens", Outcome.GOOD, evidence=NUMBERS)),
        (
            made(text=" \t\r\n\ufffd"),
            {},
            Finding("real tokens", Outcome.BAD, "text.empty", {**NUMBERS, "characters": 5}),
        ),
        (
            made(),
            {"asked_tokens": 7},
            Finding("real tokens", Outcome.BAD, "text.missing_tokens", {**NUMBERS, "asked": 7}),
        ),
        (made(), {}, Finding("variety", Outcome.GOOD, evidence={"distinct": 6, "tokens": 6})),
        (
            made(ids=[5] * 4, logprobs=None),
            {},
            Finding("variety", Outcome.BAD, "text.one_token", {"distinct": 1, "tokens": 4}),
        ),
        (
            made(ids=[5] * 3, logprobs=None),  # a canary of three may say one word thrice
            {},
            Finding("variety", Outcome.UNKNOWN, "text.one_token", {"distinct": 1, "tokens": 3}),
        ),
        (
            made(ids=[5, 6] * 4, logprobs=None),
            {"asked_tokens": 8},
            Finding("variety", Outcome.BAD, "text.loop", {"distinct": 2, "tokens": 8, "period": 2}),
        ),
        (made(), {}, Finding("logprobs", Outcome.GOOD, evidence={"mean": -2.0, "spread": 3.5})),
        (
            made((-2.0,) * 6),
            {},
            Finding("logprobs", Outcome.BAD, "numerics.constant", {"mean": -2.0, "spread": 0.0}),
        ),
        (
            made((-2.0,) * 2, (-2.0,) * 2),
            {},
            Finding("logprobs", Outcome.BAD, "numerics.constant", {"mean": -2.0, "spread": 0.0}),
        ),
        (
            made((-2.0,), (-2.0,)),  # one logprob cannot differ
            {},
            Finding("logprobs", Outcome.GOOD, evidence={"mean": -2.0, "spread": 0.0}),
        ),
        (
            made((-1.0, math.nan, -math.inf, -9999.0, math.inf, -2.0)),
            {},
            Finding(
                "logprobs", Outcome.BAD, "numerics.not_finite", {"seen": ["-9999.0", "-inf", "inf"]}
            ),
        ),
        (
            made(logprobs=None),
            {},
            Finding("logprobs", Outcome.UNKNOWN, "answer.malformed", {"logprobs": 0}),
        ),
        (
            made(),
            {},
            Finding(
                "sampling",
                Outcome.GOOD,
                evidence={"argmax_tokens": 5, "tokens": 6, CHANCE: math.exp(-11.0)},
            ),
        ),
        (
            made(UNSURE, UNSURE),
            {},
            Finding(
                "sampling",
                Outcome.BAD,
                "sampling.greedy",
                {"argmax_tokens": 6, "tokens": 6, CHANCE: math.exp(-21.0)},
            ),
        ),
        (
            made(SURE, SURE),
            {},
            Finding(
                "sampling",
                Outcome.UNKNOWN,
                "sampling.greedy",
                {"argmax_tokens": 6, "tokens": 6, CHANCE: math.exp(-2.25)},
            ),
        ),
        (
            made((-2.0,) * 6, (-2.0,) * 6),
            {},
            Finding(
                "sampling",
                Outcome.UNKNOWN,
                "sampling.greedy",
                {"argmax_tokens": 6, "tokens": 6, "tied": True},
            ),
        ),
        (
            made(logprobs=None),
            {},
            Finding("sampling", Outcome.UNKNOWN, "sampling.greedy", {"top_logprobs": False}),
        ),
        (
            made(tops=(-1.0, -1.0, math.inf, -1.0, -1.0, -1.0)),
            {},
            Finding("sampling", Outcome.UNKNOWN, "sampling.greedy", {"top_logprobs": False}),
        ),
        (
            made(),
            {"number": "two three", "needle": True},
            Finding(
                "needle",
                Outcome.GOOD,
                evidence={"needle": "two three", "starts": "one two three four five six"},
            ),
        ),
        (
            made(text="a \n b" * 30),
            {"number": "two three", "needle": True},
            Finding(
                "needle",
                Outcome.BAD,
                "text.needle_missed",
                {"needle": "two three", "starts": "a ba ba ba ba ba ba ba ba ba ba ba ba ba"},
            ),
        ),
        (
            made(),
            {"counters": DRAFTED},
            Finding("drafting", Outcome.GOOD, evidence=DRAFTING),
        ),
        (
            made(),
            {"counters": Counters(absent=True)},
            Finding("drafting", Outcome.BAD, "speculation.absent"),
        ),
        (
            made(),
            {"counters": Counters(Speculation(4, 16, 8, (4,)), Speculation(4, 16, 8, (4,)))},
            Finding(
                "drafting",
                Outcome.BAD,
                "speculation.not_drafting",
                {"drafts": 0, "draft_tokens": 0, "accepted": 0, "accepted_at": [0]},
            ),
        ),
        (
            made(),
            {"counters": Counters(Speculation(9, 36, 8), Speculation(4, 16, 8))},
            Finding(
                "drafting",
                Outcome.UNKNOWN,
                "engine.new",
                {"drafts": -5, "draft_tokens": -20, "accepted": 0, "accepted_at": []},
            ),
        ),
        (
            made(),
            {"counters": Counters(Speculation(9, 36, 8), None)},
            Finding("drafting", Outcome.UNKNOWN, "metrics.unavailable"),
        ),
        (
            made(),
            {"counters": Counters(None, Speculation(9, 36, 8))},
            Finding("drafting", Outcome.UNKNOWN, "metrics.unavailable"),
        ),
    ],
)
def test_every_finding_carries_its_figures(
    body: dict[str, Any], asked: dict[str, Any], expected: Finding
) -> None:
    """What a check found comes with the numbers that it was found by, as reports show them."""
    assert found_in(body, expected.check, **asked) == expected


ERROR = json.dumps({"error": {"message": "engine \n said no" + "." * 300}})


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (
            400,
            json.dumps({"error": {"message": f"{NAN_MESSAGE}: nan"}}),
            ("logprobs", Outcome.BAD, "numerics.nan", f"{NAN_MESSAGE}: nan"),
        ),
        (400, "{}", ("answer", Outcome.UNKNOWN, "probe.rejected", "{}")),
        (
            503,
            ERROR,
            (
                "answer",
                Outcome.UNKNOWN,
                "server.overloaded",
                ("engine \n said no" + "." * 300)[:200],
            ),
        ),
        (
            500,
            "<html>\n  oh " + "x" * 300,
            ("answer", Outcome.BAD, "server.error", ("<html> oh " + "x" * 300)[:200]),
        ),
        (500, json.dumps({"error": {}}), ("answer", Outcome.BAD, "server.error", "")),
        (
            401,
            json.dumps({"error": "who?"}),
            ("answer", Outcome.UNKNOWN, "config.unauthorized", '{"error": "who?"}'),
        ),
        (300, "", ("answer", Outcome.UNKNOWN, "server.redirect", "")),
        (399, "", ("answer", Outcome.UNKNOWN, "server.redirect", "")),
        (204, "", ("answer", Outcome.UNKNOWN, "probe.rejected", "")),
    ],
)
def test_a_refusal_is_told_in_the_servers_words(
    status: int, body: str, expected: tuple[str, Outcome, str, str]
) -> None:
    """The finding about an answer that is no completion has status and message, cut to a line."""
    check, outcome, code, message = expected
    findings, _ = judge(answer(body, status), asked_tokens=6)
    assert findings == (Finding(check, outcome, code, {"status": status, "message": message}),)


def test_a_malformed_answer_says_what_is_wrong_with_it() -> None:
    """What could not be read of a completion is named, cut to a line."""
    findings, _ = judge(answer('{"choices": [{"text": 7}]}'), asked_tokens=6)
    evidence = {"detail": "not a completion: TypeError: text is int"}
    assert findings == (Finding("answer", Outcome.UNKNOWN, "answer.malformed", evidence),)
    unread = read(answer(json.dumps({"choices": [{"text": "a", "token_ids": ["x" * 300]}]})))
    assert isinstance(unread, Failure) and unread.kind is FailureKind.MALFORMED
    assert len(unread.detail) == 200


# --- what is read of an answer --------------------------------------------------------------------


def test_tokens_without_ids_are_told_apart_by_their_text() -> None:
    """A server that returns no token ids is judged by the texts of its tokens."""
    completion = read(answer(made(token_ids=None)))
    assert isinstance(completion, Completion) and completion.tokens == WORDS
    chat = copy.deepcopy(CHAT)
    chat["choices"][0].pop("token_ids", None)
    completion = read(answer(chat))
    rows = chat["choices"][0]["logprobs"]["content"]
    assert isinstance(completion, Completion)
    assert completion.tokens == tuple(row["token"] for row in rows)


def test_tokens_without_ids_or_logprobs_are_counted() -> None:
    """Where only the usage tells how many tokens there were, their number is known and no more."""
    completion = read(answer(made(token_ids=None, logprobs=None)))
    assert isinstance(completion, Completion)
    assert completion.tokens == (completion.text,) * 6 and not completion.told_apart
    empty = read(answer(made(token_ids=None, logprobs=None, text="")))
    assert isinstance(empty, Completion) and empty.tokens == ()


def test_the_likeliest_tokens_of_a_chat_are_read() -> None:
    """A chat's top logprobs are those of its rows, the sampled one among them."""
    rows = [
        {"token": "a", "logprob": -2.0, "top_logprobs": [{"logprob": -0.5}, {"logprob": -3.0}]},
        {"token": "b", "logprob": -1.0, "top_logprobs": [{"logprob": -4.0}]},
    ]
    body = {"choices": [{"message": {"content": "ab"}, "logprobs": {"content": rows}}]}
    completion = read(answer(body))
    assert completion == Completion("ab", ("a", "b"), (-2.0, -1.0), (-0.5, -1.0))


def test_a_thinking_answer_is_its_thoughts_and_its_answer() -> None:
    """Reasoning and content are one text, in this order, with nothing between."""
    message = {"reasoning": "hm", "reasoning_content": "?", "content": "yes"}
    body = {"choices": [{"message": message, "token_ids": [1]}]}
    assert read(answer(body)) == Completion("hm?yes", (1,))


def test_tokens_that_are_only_counted_are_not_said_to_be_one() -> None:
    """Without ids and logprobs nobody can tell whether a token was repeated."""
    found = found_in(made(token_ids=None, logprobs=None), "variety")
    evidence = {"tokens": 6, "ids": 0}
    assert found == Finding("variety", Outcome.UNKNOWN, "text.one_token", evidence)


def logprobs_of(values: list[Any], tops: list[Any], names: list[str]) -> dict[str, Any]:
    return {"token_logprobs": values, "top_logprobs": tops, "tokens": names}


@pytest.mark.parametrize("scored", [True, False])
@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (
            {"logprobs": logprobs_of([15.5, -1.0], [{"a": 15.5}, {"b": -1.0}], ["a", "b"])},
            "a logprob is 15.5, which no probability has",
        ),
        (
            {"logprobs": logprobs_of([-2.0, -1.0], [{"a": 20.25}, {"b": -1.0}], ["a", "b"])},
            "a logprob is 20.25, which no probability has",
        ),
        ({"token_ids": [1, 2, 3]}, "token ids and logprobs differ in number: 3 and 2"),
        ({"token_ids": [1]}, "token ids and logprobs differ in number: 1 and 2"),
        (
            {"logprobs": logprobs_of([-2.0, -1.0], [{"a": -2.0}], ["a", "b"])},
            "logprobs and the likeliest ones differ in number: 2 and 1",
        ),
        (
            {"logprobs": logprobs_of([-2.0, -1.0], [{"a": -2.0}, {"b": -1.0}], ["a"])},
            "tokens and their logprobs differ in number: 1 and 2",
        ),
    ],
)
def test_logprobs_that_cannot_be_are_malformed(
    change: dict[str, Any], detail: str, scored: bool
) -> None:
    """Logits under the name of logprobs, and lists that do not go together, judge nothing."""
    body = made((-2.0, -1.0), (-2.0, -1.0), **change)
    findings, completion = judge(answer(body), asked_tokens=2, scored=scored)
    assert completion is None
    (found,) = findings
    assert (found.outcome, found.code) == (Outcome.UNKNOWN, "answer.malformed")
    assert found.evidence == {"detail": f"not a completion: ValueError: {detail}"}


def test_a_certain_token_has_a_logprob_of_zero() -> None:
    """Rounding may leave a hair above it."""
    values = (0.0, 5e-6, -0.0, -1.0, -2.0, -3.0)
    assert found_in(made(values, values), "logprobs").outcome is Outcome.GOOD


@pytest.mark.parametrize("rows", [[{"best": -1.0}] * 5 + [None], [], None])
def test_likeliest_tokens_that_are_missing_somewhere_are_not_used(rows: Any) -> None:
    """Sampling mode is judged on every position or not at all."""
    body = made()
    body["choices"][0]["logprobs"]["top_logprobs"] = rows
    completion = read(answer(body))
    assert isinstance(completion, Completion)
    assert completion.logprobs is not None and completion.top is None


# --- canaries: a few tokens, not scored -----------------------------------------------------------


def test_logprobs_of_a_canary_are_judged_if_there_are_any() -> None:
    """A canary without logprobs says nothing of them; one with NaN or equal ones is bad."""
    silent, _ = judge(answer(made(logprobs=None)), asked_tokens=6, scored=False)
    assert set(by_check(silent)) == {"real tokens", "variety"}
    assert worst(silent) is Outcome.GOOD
    for values in ((-2.0,) * 6, (-1.0, math.nan, -3.0, -1.0, -2.0, -5.0)):
        assert found_in(made(values), "logprobs", scored=False).outcome is Outcome.BAD


@pytest.mark.parametrize(
    ("values", "outcome"),
    [(UNSURE, Outcome.UNKNOWN), (SURE, Outcome.UNKNOWN), ((-5.0,) * 5 + (-6.0,), Outcome.GOOD)],
)
def test_a_canary_alone_is_never_greedy(values: tuple[float, ...], outcome: Outcome) -> None:
    """However unlikely its top tokens, one canary leaves sampling open; a lesser token clears it."""
    tops = UNSURE if values is not SURE else SURE
    found = found_in(made(values, tops), "sampling", scored=False)
    assert found.outcome is outcome
    assert found.evidence[CHANCE] == pytest.approx(math.exp(sum(tops)))


def test_sampling_that_a_canary_could_not_show_is_left_out() -> None:
    """Without top logprobs, or with a dead head, there is no chance to take together."""
    for body in (made(logprobs=None), made((-2.0,) * 6, (-2.0,) * 6)):
        findings, _ = judge(answer(body), asked_tokens=6, scored=False)
        assert "sampling" not in by_check(findings)


# --- thresholds -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("gap", "picked"), [(0.0, 6), (2**-17, 6), (1e-4, 5)])
def test_a_top_token_is_one_up_to_the_last_bits(gap: float, picked: int) -> None:
    """Logprobs of one number, printed twice, may differ in their last bits and no further."""
    tops = (UNSURE[0] + gap, *UNSURE[1:])
    assert found_in(made(UNSURE, tops), "sampling").evidence["argmax_tokens"] == picked


def test_a_chance_is_never_above_one() -> None:
    """Logprobs that rounding put above 0 are certain, not more than that."""
    tops = (5e-6,) * 6
    assert found_in(made(SURE, tops), "sampling").evidence[CHANCE] == 1.0


@pytest.mark.parametrize(
    ("tokens", "length"),
    [
        ([7] * 40, 1),
        ([0, 1, 2] * 22, 3),
        (list(range(8)) * 4, 8),
        (list(range(8)) * 3 + list(range(7)), None),  # short, and a token less than four times
        ([5, 1, 2, 3, 4, 6, 7, 5], None),  # ends as it began
        ([*range(15), *[99] * 16], None),  # 31 tokens: a short text must be a loop from its start
        ([*range(16), *[99] * 16], 1),  # 32 tokens: its last half is enough
        ([*range(40), *[99] * 20], None),  # its last third is not
        ([*range(32), *[100 + i % 10 for i in range(32)]], None),  # half of it, three times over
        ([*range(24), *[100 + i % 10 for i in range(40)]], 10),
        ([], None),
    ],
)
def test_a_loop_fills_the_last_half_four_times(tokens: list[int], length: int | None) -> None:
    """The shortest run is named; what repeats less often or for less of the text is no loop."""
    assert period(tokens) == length


class Counted:
    """A token that counts how often tokens are compared."""

    compared = 0

    def __init__(self, value: int) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return isinstance(other, Counted) and self._value == other._value

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("values", [[1] * 1999 + [2], [2] + [1] * 1999, [1, 2] * 1000])
def test_the_search_for_a_loop_grows_with_the_text_alone(values: list[int]) -> None:
    """Nearly a loop is the worst text; it takes no more than two comparisons a token."""
    Counted.compared = 0
    period([Counted(value) for value in values])
    assert Counted.compared <= 2 * len(values)


@given(st.lists(st.integers(0, 2), max_size=70))
def test_a_loop_is_what_its_definition_says(tokens: list[int]) -> None:
    """The shortest run that the end of the text repeats, compared token by token."""

    def loops(length: int) -> bool:
        window = len(tokens) if len(tokens) < 32 else max(4 * length, len(tokens) // 2)
        tail = tokens[len(tokens) - window :]
        return all(tail[i] == tail[i - length] for i in range(length, window))

    lengths = range(1, len(tokens) // 4 + 1)
    assert period(tokens) == next((n for n in lengths if loops(n)), None)


def test_more_tokens_than_asked_for_are_no_completion() -> None:
    """A server of vLLM's kind never gives them, and a million of them are not judged."""
    findings, completion = judge(answer(COMPLETION), asked_tokens=23)
    assert [(f.outcome, f.code) for f in findings] == [(Outcome.UNKNOWN, "answer.malformed")]
    assert completion is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices":[' + b"{}," * 30_000 + b"{}]}",
        b'{"choices":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    ],
)
def test_json_that_takes_many_times_its_size_is_not_read(body: bytes) -> None:
    """Tens of thousands of objects or lists in one answer are refused before they are made."""
    read_as = Answer(200, body).json()
    assert isinstance(read_as, Failure) and read_as.kind is FailureKind.TOO_LARGE


def test_two_kinds_of_token_are_variety() -> None:
    """Two tokens that do not loop are no fault of their own."""
    ids = [1, 1, 2, 1, 2, 2]
    assert found_in(made(ids=ids), "variety").outcome is Outcome.GOOD


# --- several answers ------------------------------------------------------------------------------


def answers(*bodies: Any) -> list[tuple[tuple[Finding, ...], Completion | None]]:
    return [judge(answer(body), asked_tokens=6) for body in bodies]


def test_answers_at_once_are_as_good_as_the_worst_of_them() -> None:
    """Of each check the worst finding is kept, with how many of the answers were not good."""
    blank = made(text=" ", ids=[9, 8, 7, 6, 5, 4])
    unread = {"choices": []}
    found = by_check(together(answers(made(), blank, unread, made(ids=[9] * 6))))
    assert set(found) == {"real tokens", "variety", "logprobs", "sampling", "answer", "apart"}
    assert found["real tokens"] == Finding(
        "real tokens",
        Outcome.BAD,
        "text.empty",
        {"requests": 4, "not_good": 1, **NUMBERS, "characters": 1},
    )
    assert found["variety"].code == "text.one_token"
    assert found["variety"].evidence["not_good"] == 1
    assert found["answer"].evidence["not_good"] == 1
    assert found["logprobs"].outcome is Outcome.GOOD
    assert found["logprobs"].evidence["not_good"] == 0
    assert found["apart"] == Finding(
        "apart", Outcome.GOOD, evidence={"answers": 3, "equal_pairs": 0}
    )


@pytest.mark.parametrize("order", [1, -1])
def test_bad_outweighs_unknown_whichever_came_first(order: int) -> None:
    """Every answer that is not good is counted, and the gravest speaks for the check."""
    bodies = [made(SURE, SURE), made(UNSURE, UNSURE), made(SURE, SURE)][::order]
    found = by_check(together(answers(*bodies)))["sampling"]
    assert (found.outcome, found.evidence["not_good"]) == (Outcome.BAD, 3)


def test_equal_answers_to_different_prompts_are_crossed() -> None:
    """Two requests that get one improbable text got each other's answer."""
    found = by_check(together(answers(made(), made(), made(ids=[9, 8, 7, 6, 5, 4]))))
    evidence = {"answers": 3, "equal_pairs": 1}
    assert found["apart"] == Finding("apart", Outcome.BAD, "text.crossed", evidence)


def test_equal_answers_that_were_nearly_certain_are_inconclusive() -> None:
    """What anybody would have said is no sign of crossing; one improbable pair still is."""
    found = by_check(together(answers(made(SURE), made(SURE))))["apart"]
    assert (found.outcome, found.code) == (Outcome.UNKNOWN, "text.crossed")
    sure, unsure = made(SURE), made(UNSURE, ids=[9, 8, 7, 6, 5, 4])
    found = by_check(together(answers(sure, sure, unsure, unsure)))["apart"]
    assert (found.outcome, found.evidence["equal_pairs"]) == (Outcome.BAD, 2)


def test_one_answer_cannot_be_anothers() -> None:
    """With fewer than two texts there is nothing to keep apart."""
    assert "apart" not in by_check(together(answers(made(), {"choices": []})))
    assert together([]) == ()


def test_a_repeated_text_is_as_bad_as_it_was_improbable() -> None:
    """The chance of the same text again decides, and is in the evidence; another text is good."""
    text = Completion("t", (1, 2), (-4.0, -5.25))
    assert differs(text, Completion("t", (2, 1))) == Finding("second seed", Outcome.GOOD)
    evidence = {"chance_of_equal_texts": math.exp(-9.25)}
    assert differs(text, text) == Finding(
        "second seed", Outcome.BAD, "sampling.seed_ignored", evidence
    )
    likely = Completion("t", (1, 2), (-4.0, -5.0))
    assert math.exp(-9.0) > ARGMAX_CHANCE > math.exp(-9.25)
    assert differs(likely, likely).outcome is Outcome.UNKNOWN
    unknown = Completion("t", (1, 2))
    assert differs(unknown, unknown) == Finding(
        "second seed",
        Outcome.UNKNOWN,
        "sampling.seed_ignored",
        {"chance_of_equal_texts": None},
    )


# --- long prompts ---------------------------------------------------------------------------------

NEEDLE = Finding("needle", Outcome.BAD, "text.needle_missed", {"needle": "123456"})
TOLD = " 123456. Words: river stone river bread stone. Page 4"
OTHER = " 654321. Words: river stone river bread stone. Page 4"


def said(text: str) -> Answer:
    """A real completion whose text is another."""
    return answer(mutated(lambda choice: choice.update(text=text)))


@pytest.mark.parametrize(
    ("text", "legible", "needle"),
    [
        (TOLD, Outcome.GOOD, Outcome.GOOD),
        (OTHER, Outcome.GOOD, Outcome.BAD),
        ("ness\u4e00 \ufffdqa the of Zr}} WATER water", Outcome.BAD, Outcome.BAD),
        ("waterlight houseriver stonebread", Outcome.BAD, Outcome.BAD),
        ("water light 123456", Outcome.BAD, Outcome.GOOD),
        (" 123456 ness\u4e00 \ufffdqa the of", Outcome.GOOD, Outcome.GOOD),
        ("WATER,light;House", Outcome.GOOD, Outcome.BAD),
    ],
)
def test_an_answer_to_a_notebook_goes_on_in_its_words(
    text: str, legible: Outcome, needle: Outcome
) -> None:
    """Three of its words are no chance, nor is its number at once; that it is in is for needles."""
    findings, _ = judge(said(text), asked_tokens=TOKENS, number="123456", needle=True)
    found = by_check(findings)
    assert (found["legible"].outcome, found["needle"].outcome) == (legible, needle)
    assert found["legible"].code == ("" if legible is Outcome.GOOD else "text.garbage")


def test_another_way_to_sample_tells_nothing_of_the_sampling_mode() -> None:
    """At a low temperature the likeliest token may come every time; drafts and numbers count."""
    findings, _ = judge(answer(COMPLETION), asked_tokens=TOKENS, counters=DRAFTED, plain=False)
    assert set(by_check(findings)) == {"real tokens", "variety", "logprobs", "drafting"}
    none, _ = judge(
        answer(COMPLETION), asked_tokens=TOKENS, counters=Counters(absent=True), plain=False
    )
    assert worst(none) is Outcome.BAD
    assert "drafting" not in by_check(judge(answer(COMPLETION), asked_tokens=1, plain=False)[0])


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ((NEEDLE,), True),
        ((NEEDLE, Finding("drafting", Outcome.UNKNOWN, "metrics.unavailable")), True),
        ((NEEDLE, Finding("legible", Outcome.BAD, "text.garbage")), False),
        ((Finding("variety", Outcome.BAD, "text.loop"),), False),
        ((Finding("needle", Outcome.GOOD),), False),
        ((), False),
    ],
)
def test_a_needle_is_missed_if_nothing_else_is_bad(
    findings: tuple[Finding, ...], expected: bool
) -> None:
    """Only then it may have been sampling, and is asked for again."""
    assert missed(findings) is expected


@pytest.mark.parametrize(
    ("found", "tokens", "code"),
    [
        ((), 1500, "text.needle_missed"),
        ((), 8000, "text.needle_missed"),
        ((500,), 2048, "text.needle_missed"),
        ((500,), 2049, "text.needle_missed_past_2048"),
        ((1500, 8000), 32_000, "text.needle_missed_past_2048"),
    ],
)
def test_a_miss_is_named_by_what_was_found_in_shorter_prompts(
    found: tuple[int, ...], tokens: int, code: str
) -> None:
    """Without a shorter one that was right, and up to what the indexer picks whole, it is no matter
    of length."""
    other = Finding("variety", Outcome.GOOD)
    seen = ladder((other, NEEDLE), found, tokens)
    evidence = {"found_at": list(found), "missed_at": tokens, "needle": "123456"}
    assert seen == (other, Finding("needle", Outcome.BAD, code, evidence))


def test_a_needle_that_is_found_is_kept_with_those_before_it() -> None:
    """What reports show of a gate that passed: every length that was right."""
    (seen,) = ladder((Finding("needle", Outcome.GOOD),), (1500,), 8000)
    assert seen == Finding("needle", Outcome.GOOD, evidence={"found_at": [1500, 8000]})
