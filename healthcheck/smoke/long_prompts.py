"""Long prompts up to what the server holds: each has to be answered, and its needle found."""

from __future__ import annotations

import time
from collections.abc import Iterator

from healthcheck.judge import Outcome, Step, worst
from healthcheck.smoke.results import Check, LongPrompt
from healthcheck.smoke.target import Session, row
from healthcheck.verdict import Generation, Want

TOKENS = 32
# Faults of attention and KV cache show past 2,048 and past 4 to 5 thousand tokens on gfx942.
LENGTHS = (1_000, 3_000, 7_000, 16_000, 64_000, 128_000, 256_000, 512_000, 1_000_000)
# The longest of all is added if it is this much longer than the last of them.
_LONGER = 1.2
# Attention grows faster than its prompt: what one more token costs, against the one before.
_GROWTH = 1.5


def lengths(max_model_len: int | None) -> tuple[int, ...]:
    """The prompts' lengths in tokens for a server that holds `max_model_len`, None: not told."""
    if max_model_len is None:
        return LENGTHS[:3]
    room = max_model_len - TOKENS
    fits = [length for length in LENGTHS if length <= room]
    if room > _LONGER * (fits[-1] if fits else 0):
        fits.append(room)
    return tuple(fits)


def needle(session: Session) -> Iterator[Check]:
    """From short to long, as far as the time budget lets one see that the next one fits in."""
    report, budget_s = session.report, session.target.budget_s
    if not session.target.profile.health.needle:
        why = "the profile says that its models find none (random weights); answers are judged"
        report.leave_out("needle", why)
    if report.max_model_len is None:
        report.leave_out("longer prompts", "/v1/models does not tell max_model_len")
    began = time.monotonic()
    last: LongPrompt | None = None
    for length in lengths(report.max_model_len):
        left_s = budget_s - (time.monotonic() - began)
        if last is not None and last.seconds * _GROWTH * length / last.prompt_tokens > left_s:
            why = f"the next one does not fit in the {budget_s:.0f} s given (--budget)"
            report.leave_out(f"prompts from {length} tokens", why)
            return
        check, last = _ask(session, length, left_s)
        report.long_prompts.append(last)
        yield check
        if check.outcome is not Outcome.GOOD:
            return


def _ask(session: Session, length: int, left_s: float) -> tuple[Check, LongPrompt]:
    """One length; words that were missed are asked for again, as sampling may have lost them."""
    first = _generate(session, length, left_s, seed=1)
    missed = _missed(first)
    ran = _generate(session, length, left_s, seed=2) if missed else first
    took = ran.ended_at - ran.started_at
    judged = session.target.profile.health.needle
    found = not _missed(ran) if judged and ran.completion is not None else None
    name = f"prompt of {length}"
    outcome = worst(ran.findings)
    if outcome is Outcome.GOOD:
        words = "answered, every logprob finite" + (", its words found" if found else "")
        if missed:
            words += " at the second try"
        return Check(name, outcome, words, took), LongPrompt(length, took, found)
    told = next(f for f in ran.findings if f.outcome is outcome)
    return row(told, took, name), LongPrompt(length, took, found)


def _missed(ran: Generation) -> bool:
    return any(f.check == "needle" and f.outcome is not Outcome.GOOD for f in ran.findings)


def _generate(session: Session, length: int, left_s: float, seed: int) -> Generation:
    target = session.target
    limit_s = max(left_s, target.profile.health.generation_timeout_s)
    want = Want(Step.LONG, 0, f"long-{length}-{seed}", seed, TOKENS, limit_s, prompt_tokens=length)
    return target.generator.run(want, target.model)
