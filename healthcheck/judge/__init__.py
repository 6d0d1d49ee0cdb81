"""Judges the answer of one generation: a list of findings, each good, bad or unknown.

Pure functions of the answer and of the counters before and after it. The rules are those of the
gate: real tokens, finite logprobs that differ, no loop, a draft counter that rose, sampling that is
not argmax, two seeds that give two texts, needles of ever longer prompts that are found, several
answers at once of which each is its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from healthcheck.client.answers import Answer, Failure, FailureKind
from healthcheck.client.exposition import Speculation
from healthcheck.judge import prompts

# Python's own JSON writer says it so (vLLM PR 41136).
NAN_MESSAGE = "Out of range float values are not JSON compliant"
ARGMAX_CHANCE = 1e-4
CHANCE = "chance_of_all_argmax"
# vLLM writes -inf as -9999.0 in a completion's logprobs.
NO_LOGPROB = -9999.0
MOST_TOKENS = 1 << 20  # of one of our answers, which asks for some hundred
# Logprobs come as float32 printed in full: equal means equal up to its last bits.
LOGPROB_TOLERANCE = 1e-5
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# DeepSeek V4's indexer picks 512 groups of 4 tokens: in a prompt up to here each of them, be its
# scores right or wrong.
PICKED_TOKENS = 2048
# A right model may miss a needle by sampling: only a second one of the same length is decisive.
MISSES = 2
# Of its own words a garbled text has none or, by chance, one or two.
_OWN_WORDS = 3
QUESTION = "question"  # the check of question.py
MAY_BE_INCONCLUSIVE = frozenset({"sampling", "second seed", "apart", QUESTION})


class Outcome(StrEnum):
    """What a check found; UNKNOWN is not bad."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"


# The worse, the higher.
GRAVITY = {Outcome.GOOD: 0, Outcome.UNKNOWN: 1, Outcome.BAD: 2}


class Step(StrEnum):
    """What a generation is for."""

    WARM_UP = "warm-up"
    PROBE = "probe"
    SECOND_SEED = "second-seed"
    TOP_P = "top-p"
    QUESTION = "question"
    LONG = "long"
    AT_ONCE = "at-once"
    EVERY_ENGINE = "every-engine"
    CANARY = "canary"
    RECOVERY = "recovery"
    IDLE = "idle"


@dataclass(frozen=True)
class Finding:
    """One check's result. `code` is a reason of reasons.py, empty when good."""

    check: str
    outcome: Outcome
    code: str = ""
    evidence: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Completion:
    """The part of a completion that is judged.

    `logprobs` are those of the sampled tokens, `top` the highest logprob at each position; both
    None if the server gave none. `told_apart` False: only the number of the tokens is known, and
    the whole text stands for each.
    """

    text: str
    tokens: tuple[int, ...] | tuple[str, ...]
    logprobs: tuple[float, ...] | None = None
    top: tuple[float, ...] | None = None
    told_apart: bool = True


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


def worst(findings: Sequence[Finding]) -> Outcome:
    """BAD if any check is; UNKNOWN if a check that a pass needs could not be made; else GOOD.

    Sampling mode and second seed may stay inconclusive: a text that is nearly certain comes out
    the same either way. So may the question: not every server chats.
    """
    if any(f.outcome is Outcome.BAD for f in findings):
        return Outcome.BAD
    needed = [f for f in findings if f.check not in MAY_BE_INCONCLUSIVE]
    if not needed or any(f.outcome is Outcome.UNKNOWN for f in needed):
        return Outcome.UNKNOWN
    return Outcome.GOOD


def differs(first: Completion, second: Completion) -> Finding:
    """Whether two seeds gave two texts of one prompt."""
    if first.tokens != second.tokens:
        return Finding("second seed", Outcome.GOOD)
    # A text that was nearly certain comes again under any seed.
    chance = chance_of(first)
    evidence = {"chance_of_equal_texts": chance}
    if chance is None or chance >= ARGMAX_CHANCE:
        return Finding("second seed", Outcome.UNKNOWN, "sampling.seed_ignored", evidence)
    return Finding("second seed", Outcome.BAD, "sampling.seed_ignored", evidence)


def chance_of(completion: Completion) -> float | None:
    """The probability of a text under sampling, None without logprobs."""
    return math.exp(min(sum(completion.logprobs), 0.0)) if completion.logprobs else None


def missed(findings: Sequence[Finding]) -> bool:
    """Whether nothing is bad but that a needle or an answer was missed, which sampling alone can
    do."""
    bad = [f.check for f in findings if f.outcome is Outcome.BAD]
    return bad in (["needle"], [QUESTION])


def ladder(findings: Sequence[Finding], found: Sequence[int], tokens: int) -> tuple[Finding, ...]:
    """The findings about a prompt of so many tokens, its needle seen beside those of the shorter
    prompts, of which each was found.

    What is right in a short prompt and wrong in one of more than PICKED_TOKENS is the choice of
    what attention looks at, not the model.
    """
    return tuple(_climbed(f, found, tokens) if f.check == "needle" else f for f in findings)


def _climbed(needle: Finding, found: Sequence[int], tokens: int) -> Finding:
    if needle.outcome is Outcome.GOOD:
        return replace(needle, evidence={"found_at": [*found, tokens], **needle.evidence})
    sparse = bool(found) and tokens > PICKED_TOKENS
    evidence = {"found_at": list(found), "missed_at": tokens, **needle.evidence}
    return replace(
        needle,
        code="text.needle_missed_past_2048" if sparse else needle.code,
        evidence=evidence,
    )


def together(
    answers: Sequence[tuple[tuple[Finding, ...], Completion | None]],
) -> tuple[Finding, ...]:
    """The findings about several answers that ran at once: of each check the worst, counted.

    No two of them may be the same text, as their prompts and seeds differ.
    """
    worst_of: dict[str, Finding] = {}
    counts: dict[str, int] = {}
    for findings, _ in answers:
        for finding in findings:
            kept = worst_of.get(finding.check)
            if finding.outcome is not Outcome.GOOD:
                counts[finding.check] = counts.get(finding.check, 0) + 1
            if kept is None or GRAVITY[finding.outcome] > GRAVITY[kept.outcome]:
                worst_of[finding.check] = finding
    found = [
        replace(
            f, evidence={"requests": len(answers), "not_good": counts.get(check, 0), **f.evidence}
        )
        for check, f in worst_of.items()
    ]
    completions = [completion for _, completion in answers if completion is not None]
    if len(completions) > 1:
        found.append(_apart(completions))
    return tuple(found)


def _apart(completions: Sequence[Completion]) -> Finding:
    pairs = itertools.combinations(completions, 2)
    same = [f for f in (differs(a, b) for a, b in pairs) if f.outcome is not Outcome.GOOD]
    evidence = {"answers": len(completions), "equal_pairs": len(same)}
    if not same:
        return Finding("apart", Outcome.GOOD, evidence=evidence)
    outcome = max((f.outcome for f in same), key=GRAVITY.__getitem__)
    return Finding("apart", outcome, "text.crossed", evidence)


def period(tokens: Sequence[object]) -> int | None:
    """The length of the run of tokens that the text ends in a loop of, None if in no loop.

    A loop is a run that fills the last half of the text at least four times over; of a text under
    32 tokens all of it, for short texts repeat by chance.
    """
    count = len(tokens)
    repeats = _repeats(tokens[::-1])
    for length in range(1, count // 4 + 1):
        window = count if count < 32 else max(4 * length, count // 2)
        if repeats[length] >= window - length:
            return length
    return None


def _repeats(tokens: Sequence[object]) -> list[int]:
    """At each place, for how long the tokens from there on are those from the beginning on: what
    is known to repeat is not compared again, so the work grows with the length alone."""
    count = len(tokens)
    found = [count] * count
    begin = end = 0  # the stretch known to repeat that reaches furthest
    for at in range(1, count):
        length = min(found[at - begin], end - at) if at < end else 0
        while at + length < count and tokens[length] == tokens[at + length]:
            length += 1
        found[at] = length
        if at + length > end:
            begin, end = at, at + length
    return found


def read(answer: Answer) -> Completion | Failure:
    """The judged part of a completion or chat answer, or why there is none."""
    body = answer.json()
    if isinstance(body, Failure):
        return body
    try:
        return _completion(body)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as e:
        detail = f"not a completion: {type(e).__name__}: {e}"[:200]
        return Failure(FailureKind.MALFORMED, detail)


def _completion(body: Any) -> Completion:
    choice = body["choices"][0]
    message = choice.get("message")
    if message is not None:
        # Either counts as output: a thinking answer has content null.
        parts = (message.get("reasoning"), message.get("reasoning_content"), message.get("content"))
        text = "".join(_text(p) for p in parts if p is not None)
    else:
        text = _text(choice["text"])
    logprobs, top, names = _logprobs(choice.get("logprobs"))
    ids = choice.get("token_ids")
    tokens: tuple[Any, ...]
    if ids is not None:
        tokens = tuple(int(i) for i in ids)
        _same_length("token ids and logprobs", tokens, logprobs)
    elif names is not None:
        tokens = names
    else:
        count = int(body["usage"]["completion_tokens"])
        if not 0 <= count <= MOST_TOKENS:
            raise ValueError(f"usage counts {count} tokens")
        return Completion(text, (text,) * count if text else (), told_apart=False)
    return Completion(text, tokens, logprobs, top)


def _same_length(what: str, first: Sequence[object], second: Sequence[object] | None) -> None:
    """Raises ValueError if two lists that go together do not."""
    if second is not None and len(first) != len(second):
        raise ValueError(f"{what} differ in number: {len(first)} and {len(second)}")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text is {type(value).__name__}")
    return value


def _logprobs(
    block: Any,
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None, tuple[str, ...] | None]:
    if block is None:
        return None, None, None
    if "content" in block:  # chat
        rows = block["content"] or ()
        values = tuple(float(row["logprob"]) for row in rows)
        tops = [[float(t["logprob"]) for t in row.get("top_logprobs") or ()] for row in rows]
        names = tuple(_text(row["token"]) for row in rows)
    else:
        values = tuple(float(v) for v in block["token_logprobs"])
        tops = [[float(v) for v in (t or {}).values()] for t in block.get("top_logprobs") or ()]
        names = tuple(_text(t) for t in block["tokens"])
    _same_length("tokens and their logprobs", names, values)
    above = [v for v in (*values, *(t for row in tops for t in row)) if v > LOGPROB_TOLERANCE]
    if any(math.isfinite(v) for v in above):
        # Logits under that name: a likeliest token's are no probability to reckon with.
        raise ValueError(f"a logprob is {max(above):g}, which no probability has")
    if not tops:
        return values, None, names
    _same_length("logprobs and the likeliest ones", values, tops)
    if not all(tops):
        return values, None, names
    # Two tokens can have the same text and share a key, so the sampled one is put in again.
    top = tuple(max(v, *t) for v, t in zip(values, tops, strict=True))
    return values, top, names


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
