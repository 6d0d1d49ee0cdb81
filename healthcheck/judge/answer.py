"""Judges the answer of one generation by what it says and by the counters around it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from healthcheck.client.answers import Answer, Failure, FailureKind
from healthcheck.client.exposition import Speculation
from healthcheck.judge import prompts
from healthcheck.judge.findings import Finding, Outcome
from healthcheck.judge.looping import period
from healthcheck.judge.reading import LOGPROB_TOLERANCE, Completion, read

# Python's own JSON writer says it so (vLLM PR 41136).
NAN_MESSAGE = "Out of range float values are not JSON compliant"
ARGMAX_CHANCE = 1e-4
CHANCE = "chance_of_all_argmax"
# vLLM writes -inf as -9999.0 in a completion's logprobs.
NO_LOGPROB = -9999.0
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Of its own words a garbled text has none or, by chance, one or two.
_OWN_WORDS = 3


@dataclass(frozen=True)
class Counters:
    """Speculation counters around a generation; None where /metrics could not be read, and
    `absent` where it was read and has none."""

    before: Speculation | None = None
    after: Speculation | None = None
    absent: bool = False


def judge(
    answer: Answer | Failure,
    *,
    asked_tokens: int,
    exactly: bool = True,
    counters: Counters | None = None,
    scored: bool = True,
    plain: bool = True,
    number: str | None = None,
    needle: bool = False,
) -> tuple[tuple[Finding, ...], Completion | None]:
    """Every finding about one completion or chat answer, and what was read of it.

    `exactly` False: `asked_tokens` are the least. `counters` None: the server is not expected to
    speculate. `scored` False leaves out the tests that need more than a canary's few tokens:
    sampling mode is never bad then, the draft counter not looked at. `plain` False: not sampled at
    temperature 1 from all tokens, so that logprobs tell nothing of the sampling mode. `number`:
    the prompt was a notebook (prompts.py) that asks for it, so the text must begin with it or go on
    in the notebook's words; with `needle` it must hold the number.
    """
    refusal = _refusal(answer)
    if refusal is not None:
        return (refusal,), None
    assert isinstance(answer, Answer)
    completion = read(answer)
    if exactly and isinstance(completion, Completion) and len(completion.tokens) > asked_tokens:
        told = f"{len(completion.tokens)} tokens where {asked_tokens} were asked for"
        completion = Failure(FailureKind.MALFORMED, told)
    if isinstance(completion, Failure):
        evidence = {"detail": completion.detail}
        return (Finding("answer", Outcome.UNKNOWN, "answer.malformed", evidence),), None
    findings = [
        _tokens(completion, asked_tokens),
        _variety(completion),
        *_numbers(completion, scored),
    ]
    if number is not None:
        findings.append(_legible(completion, number))
        if needle:
            findings.append(_needle(completion, number))
    if not plain:
        return (*findings, *([_drafting(counters)] if counters is not None else [])), completion
    sampling = _sampling(completion)
    if scored:
        findings.append(sampling)
        if counters is not None:
            findings.append(_drafting(counters))
    elif CHANCE in sampling.evidence:
        # A canary's few tokens tell nothing alone; the verdict takes several together.
        alone = Outcome.GOOD if sampling.outcome is Outcome.GOOD else Outcome.UNKNOWN
        findings.append(replace(sampling, outcome=alone))
    return tuple(findings), completion


def _refusal(answer: Answer | Failure) -> Finding | None:
    """What an answer that is no completion says, None if it is one."""
    if isinstance(answer, Failure):
        timed_out = answer.kind is FailureKind.TIMEOUT
        code = "generation.timeout" if timed_out else "generation.failed"
        evidence: dict[str, object] = {"kind": answer.kind.value, "detail": answer.detail}
        return Finding("answer", Outcome.UNKNOWN, code, evidence)
    status = answer.status
    if status == 200:
        return None
    message = _message(answer)
    evidence = {"status": status, "message": message}
    if status == 400 and NAN_MESSAGE in message:
        return Finding("logprobs", Outcome.BAD, "numerics.nan", evidence)
    if status in (429, 503):
        return Finding("answer", Outcome.UNKNOWN, "server.overloaded", evidence)
    if status >= 500:
        return Finding("answer", Outcome.BAD, "server.error", evidence)
    code = {401: "config.unauthorized", 403: "config.unauthorized", 404: "config.wrong_model"}.get(
        status, "server.redirect" if 300 <= status < 400 else "probe.rejected"
    )
    return Finding("answer", Outcome.UNKNOWN, code, evidence)


def _message(answer: Answer) -> str:
    """vLLM's error message, or the start of whatever the body is."""
    body = answer.json()
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        return str(body["error"].get("message", ""))[:200]
    return " ".join(answer.text.split())[:200]


def _tokens(completion: Completion, asked: int) -> Finding:
    count = len(completion.tokens)
    evidence = {"tokens": count, "asked": asked, "characters": len(completion.text)}
    if not completion.text.strip(REPLACEMENT + " \t\r\n"):
        return Finding("real tokens", Outcome.BAD, "text.empty", evidence)
    if count < asked:
        return Finding("real tokens", Outcome.BAD, "text.missing_tokens", evidence)
    return Finding("real tokens", Outcome.GOOD, evidence=evidence)


def _variety(completion: Completion) -> Finding:
    if not completion.told_apart:
        evidence = {"tokens": len(completion.tokens), "ids": 0}
        return Finding("variety", Outcome.UNKNOWN, "text.one_token", evidence)
    distinct = len(set(completion.tokens))
    evidence = {"distinct": distinct, "tokens": len(completion.tokens)}
    if distinct < 2:
        few = len(completion.tokens) < 4
        outcome = Outcome.UNKNOWN if few else Outcome.BAD
        return Finding("variety", outcome, "text.one_token", evidence)
    length = period(completion.tokens)
    if length is not None:
        return Finding("variety", Outcome.BAD, "text.loop", {**evidence, "period": length})
    return Finding("variety", Outcome.GOOD, evidence=evidence)


def _legible(completion: Completion, number: str) -> Finding:
    """Whether the answer to a notebook begins with what it asks for, or is of its words."""
    own = prompts.own_words(completion.text)
    evidence = {"own_words": own, "starts": " ".join(completion.text.split())[:40]}
    if own >= _OWN_WORDS or completion.text.lstrip().startswith(number):
        return Finding("legible", Outcome.GOOD, evidence=evidence)
    return Finding("legible", Outcome.BAD, "text.garbage", evidence)


def _needle(completion: Completion, number: str) -> Finding:
    evidence = {"needle": number, "starts": " ".join(completion.text.split())[:40]}
    if number in completion.text:
        return Finding("needle", Outcome.GOOD, evidence=evidence)
    return Finding("needle", Outcome.BAD, "text.needle_missed", evidence)


def _numbers(completion: Completion, scored: bool) -> list[Finding]:
    values = completion.logprobs
    if values is None and not scored:
        return []
    if not values:
        return [Finding("logprobs", Outcome.UNKNOWN, "answer.malformed", {"logprobs": 0})]
    if not all(math.isfinite(v) and v > NO_LOGPROB for v in values):
        # Named as text: a report is JSON, which has no NaN either.
        seen = sorted({str(v) for v in values if not (math.isfinite(v) and v > NO_LOGPROB)})
        return [Finding("logprobs", Outcome.BAD, "numerics.not_finite", {"seen": seen[:3]})]
    spread = max(values) - min(values)
    evidence = {"mean": sum(values) / len(values), "spread": spread}
    if spread <= LOGPROB_TOLERANCE and len(values) > 1:
        return [Finding("logprobs", Outcome.BAD, "numerics.constant", evidence)]
    return [Finding("logprobs", Outcome.GOOD, evidence=evidence)]


def _sampling(completion: Completion) -> Finding:
    """Plain argmax, told by its probability under sampling: the product of the top ones."""
    values, top = completion.logprobs, completion.top
    finite = top is not None and all(math.isfinite(t) for t in top)
    if values is None or top is None or not top or not finite:
        return Finding("sampling", Outcome.UNKNOWN, "sampling.greedy", {"top_logprobs": False})
    picked = sum(t - v <= LOGPROB_TOLERANCE for v, t in zip(values, top, strict=True))
    chance = math.exp(min(sum(top), 0.0))
    evidence = {"argmax_tokens": picked, "tokens": len(top), CHANCE: chance}
    if picked < len(top):
        return Finding("sampling", Outcome.GOOD, evidence=evidence)
    if max(values) - min(values) <= LOGPROB_TOLERANCE:
        # A dead head: all tokens are equally likely, so any sampled one is a top one, by no chance.
        tied = {"argmax_tokens": picked, "tokens": len(top), "tied": True}
        return Finding("sampling", Outcome.UNKNOWN, "sampling.greedy", tied)
    outcome = Outcome.BAD if chance < ARGMAX_CHANCE else Outcome.UNKNOWN
    return Finding("sampling", outcome, "sampling.greedy", evidence)


def _drafting(counters: Counters) -> Finding:
    if counters.absent:
        return Finding("drafting", Outcome.BAD, "speculation.absent")
    if counters.before is None or counters.after is None:
        return Finding("drafting", Outcome.UNKNOWN, "metrics.unavailable")
    counted = counters.after.since(counters.before)
    evidence: dict[str, object] = {
        "drafts": counted.drafts,
        "draft_tokens": counted.draft_tokens,
        "accepted": counted.accepted,
        "accepted_at": list(counted.accepted_at),
    }
    if counted.drafts < 0:  # a new engine between the two samples
        return Finding("drafting", Outcome.UNKNOWN, "engine.new", evidence)
    if counted.drafts == 0:
        return Finding("drafting", Outcome.BAD, "speculation.not_drafting", evidence)
    return Finding("drafting", Outcome.GOOD, evidence=evidence)
