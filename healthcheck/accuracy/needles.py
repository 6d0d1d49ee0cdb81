"""Needles at several depths of ever longer prompts, as far as the server has room."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from healthcheck.accuracy.ask import RANDOM, width
from healthcheck.accuracy.results import Needles, Report
from healthcheck.judge import Outcome, prompts, worst
from healthcheck.smoke.long_prompts import GROWTH, lengths, twice
from healthcheck.smoke.results import Check
from healthcheck.smoke.target import Session, gravest, row

# Shares of the prompt: its end is where the question stands.
DEPTHS = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class _Found:
    """One needle: its row, whether it was found at all and at the first try."""

    check: Check
    found: bool
    at_first: bool


def needle_rows(report: Report, session: Session) -> Iterator[Check]:
    """A row a length. A length that misses its needles does not end it, so that the report shows
    from where on they are missed; one that is not answered does."""
    target = session.target
    if not target.profile.health.known_answers:
        report.leave_out("needles", RANDOM)
        check, _ = _length(session, prompts.A_FEW_TOKENS, DEPTHS[:1], (), target.budget_s)
        yield check
        return
    if report.max_model_len is None:
        report.leave_out("longer needles", "/v1/models does not tell max_model_len")
    until = time.monotonic() + target.budget_s
    right: list[int] = []
    last: Needles | None = None
    for length in lengths(target.profile.health.long_prompt_tokens, report.max_model_len):
        left_s = until - time.monotonic()
        if last is not None and last.seconds * GROWTH * length / last.prompt_tokens > left_s:
            why = f"they do not fit in the {target.budget_s:.0f} s given (--budget)"
            report.leave_out(f"needles from {length} tokens", why)
            return
        check, last = _length(session, length, DEPTHS, right, left_s)
        report.needles.append(last)
        yield check
        if check.outcome is Outcome.UNKNOWN:
            return
        if check.outcome is Outcome.GOOD:
            right.append(length)


def _length(
    session: Session, length: int, depths: Sequence[float], shorter: Sequence[int], left_s: float
) -> tuple[Check, Needles]:
    """All depths of one length, side by side as a server works."""
    began = time.monotonic()
    with ThreadPoolExecutor(min(width(session), len(depths)), "needle") as pool:
        seen = list(
            pool.map(lambda depth: _needle(session, length, depth, shorter, left_s), depths)
        )
    took = time.monotonic() - began
    told = Needles(
        length,
        len(seen),
        sum(each.found for each in seen),
        sum(each.at_first for each in seen),
        took,
    )
    name = f"needles at {length}"
    gravest_one = gravest(each.check for each in seen)
    assert gravest_one is not None
    words = f"{told.found} of {told.asked} found, {told.found_at_first} at the first try"
    if not session.target.profile.health.known_answers:
        words = f"{told.asked} answered"
    if gravest_one.outcome is not Outcome.GOOD:
        words = f"{words}; {gravest_one.evidence}"
    return Check(name, gravest_one.outcome, words, took, gravest_one.code), told


def _needle(
    session: Session, length: int, depth: float, shorter: Sequence[int], left_s: float
) -> _Found:
    ran, findings, again = twice(session, length, left_s, shorter, depth)
    outcome = worst(findings)
    told = next((f for f in findings if f.outcome is outcome), findings[0])
    found = any(f.check == "needle" and f.outcome is Outcome.GOOD for f in findings)
    return _Found(row(told, ran.ended_at - ran.started_at), found, found and not again)
