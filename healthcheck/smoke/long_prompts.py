"""Long prompts up to what the server holds: each has to be answered, and its needle found."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from healthcheck.judge import Finding, Outcome, Step, ladder, missed, prompts, worst
from healthcheck.judge.prompts import DEPTH
from healthcheck.smoke.results import Check, LongPrompt
from healthcheck.smoke.target import Session, row
from healthcheck.verdict import Generation, Want

TOKENS = 32
# Beyond those of the profile's start gate.
LONGER = (64_000, 128_000, 256_000, 512_000, 1_000_000)
# Attention grows faster than its prompt: what one more token costs, against the one before.
GROWTH = 1.5


def lengths(gate: Sequence[int], max_model_len: int | None) -> tuple[int, ...]:
    """The prompts' lengths in tokens: those of the start gate and longer ones, as far as a server
    that holds `max_model_len` (None: not told) has room."""
    longer = [length for length in LONGER if length > max(gate, default=0)]
    room = None if max_model_len is None else max_model_len - TOKENS
    return prompts.rungs([*gate, *longer], room)


def needle(session: Session) -> Iterator[Check]:
    """From short to long, as far as the time budget lets one see that the next one fits in."""
    report, budget_s = session.report, session.target.budget_s
    if not session.target.profile.health.known_answers:
        why = "the profile says that its models find none (random weights); answers are judged"
        report.leave_out("needle", why)
    if report.max_model_len is None:
        report.leave_out("longer prompts", "/v1/models does not tell max_model_len")
    began = time.monotonic()
    last: LongPrompt | None = None
    found: list[int] = []
    for length in lengths(session.target.profile.health.long_prompt_tokens, report.max_model_len):
        left_s = budget_s - (time.monotonic() - began)
        if last is not None and last.seconds * GROWTH * length / last.prompt_tokens > left_s:
            why = f"the next one does not fit in the {budget_s:.0f} s given (--budget)"
            report.leave_out(f"prompts from {length} tokens", why)
            return
        check, last = _ask(session, length, left_s, found)
        report.long_prompts.append(last)
        yield check
        if check.outcome is not Outcome.GOOD:
            return
        found.append(length)


def _ask(
    session: Session, length: int, left_s: float, shorter: Sequence[int]
) -> tuple[Check, LongPrompt]:
    """One length."""
    ran, findings, again = twice(session, length, left_s, shorter)
    took = ran.ended_at - ran.started_at
    judged = session.target.profile.health.known_answers
    lost = any(f.check == "needle" and f.outcome is not Outcome.GOOD for f in ran.findings)
    found = not lost if judged and ran.completion is not None else None
    name = f"prompt of {length}"
    outcome = worst(findings)
    if outcome is Outcome.GOOD:
        words = "answered, every logprob finite" + (", its words found" if found else "")
        if again:
            words += " at the second try"
        return Check(name, outcome, words, took), LongPrompt(length, took, found)
    told = next(f for f in findings if f.outcome is outcome)
    return row(told, took, name), LongPrompt(length, took, found)


def twice(
    session: Session, length: int, left_s: float, shorter: Sequence[int], depth: float = DEPTH
) -> tuple[Generation, Sequence[Finding], bool]:
    """One needle, asked for a second time where it was missed, as sampling may lose it: what ran
    last, its findings by what was found in `shorter` prompts, and whether it was the second."""
    target = session.target
    limit_s = max(left_s, target.profile.health.generation_timeout_s)

    def generate(seed: int) -> Generation:
        nonce = f"needle-{length}-{depth}-{seed}"
        want = Want(Step.LONG, 0, nonce, seed, TOKENS, limit_s, prompt_tokens=length, depth=depth)
        return target.generator.run(want, target.model)

    first = generate(1)
    again = missed(first.findings)
    ran = generate(2) if again else first
    return ran, ladder(ran.findings, shorter, length), again
