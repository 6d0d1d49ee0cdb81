"""What the course of a start comes to: the verdict, the cause, and what stands beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from healthcheck.explain.course import MOST_EXCEPTIONS, Course
from healthcheck.explain.findings import (
    UNCLASSIFIED,
    Attempt,
    Evidence,
    Explanation,
    Finding,
    Verdict,
)
from healthcheck.explain.judging import Sorted, finding_of, headline_of, remedy_of
from healthcheck.explain.lines import LogClock
from healthcheck.explain.signatures import Severity
from healthcheck.explain.traces import ExceptionSeen
from healthcheck.explain.waits import Wait


def conclude(
    course: Course, clock: LogClock, lines: int, earlier: Sequence[Attempt] = ()
) -> Explanation:
    """What `lines` lines say of a start, and of those before it in the same log."""
    now, ready = clock.seconds, course.timeline.ready
    for unfinished in course.traces.unfinished():
        course.add_frames(unfinished)
    current = [seen for (_, era, _), seen in course.seen.items() if era == ready]
    exceptions = _exceptions(course)
    waits = tuple(_wait_finding(course, wait, now) for wait in course.waits.all())
    of = Sorted(current, waits, exceptions, ready, begun=course.timeline.begun)
    cause = _located(course, of.cause())
    verdict = _verdict(cause, of, ready, lines)
    before = [seen for (_, era, _), seen in course.seen.items() if era != ready]
    warned = [seen for seen in current if seen.signature.severity is Severity.WARN]
    warned += [seen for seen in current if seen.quiet and not of.has(seen.signature)]
    # A start that has failed takes no longer, however long its log is silent.
    failed = verdict.is_bad and not (cause and cause.state)
    startup = course.timeline.startup(clock.last_line_s if failed else now)
    error = course.first_error
    return Explanation(
        verdict=verdict,
        headline=headline_of(verdict, cause, of, startup, stopped=course.stopped),
        cause=cause,
        startup=startup,
        findings=of.causes,
        exceptions=exceptions,
        wrappers=of.wrappers,
        warnings=tuple(
            finding_of(seen)
            for seen in (*before, *warned)
            if seen.signature.severity is not Severity.TRANSIENT
        ),
        waits=waits,
        first_error=error[1] if error and error[0] == ready else None,
        stopped=course.stopped,
        lines=lines,
        seconds=now,
        earlier_attempts=tuple(earlier),
    )


def _located(course: Course, cause: Finding | None) -> Finding | None:
    """The cause with what lines before it say of where and why it came about."""
    if cause is None:
        return None
    if cause.id == UNCLASSIFIED and "nccl" in cause.evidence[0].text.lower():
        before = [
            one
            for era, one in course.rccl
            if era == course.timeline.ready and one.line_number < cause.line_number
        ]
        cause = dataclasses.replace(cause, evidence=(*before[:1], *cause.evidence))
    said = course.places.of(cause.id, cause.line_number)
    return dataclasses.replace(cause, remedy="; ".join((cause.remedy, *said)))


def _exceptions(course: Course) -> tuple[ExceptionSeen, ...]:
    seen = [one for era, one in course.exceptions if era == course.timeline.ready]
    if not course.stopped:
        seen += [one.seen for one in course.traces.unfinished() if not one.signatures]
    in_order = sorted(seen, key=lambda one: (one.cut_off, one.line_number))
    return tuple(in_order[:MOST_EXCEPTIONS])


def _wait_finding(course: Course, wait: Wait, now: float | None) -> Finding:
    seen = next(seen for key, seen in course.seen.items() if key[0] == wait.signature.id)
    state = "ended" if wait.ended else "overdue" if wait.overdue(now) else "waiting"
    return dataclasses.replace(
        finding_of(seen),
        process=wait.process,
        rank=wait.rank,
        line_number=wait.line_number,
        seconds=wait.begun_s,
        remedy=remedy_of(wait.signature, wait.values),
        values=dict(wait.values),
        evidence=(Evidence(wait.line_number, wait.text),),
        state=state,
        waited_s=None if wait.ended else wait.age_s(now),
    )


def _verdict(cause: Finding | None, of: Sorted, ready: bool, lines: int) -> Verdict:
    if cause:
        return Verdict.FAILED
    if of.wrappers:
        return Verdict.CAUSE_NOT_IN_LOG
    if ready:
        return Verdict.STARTED
    return Verdict.LOADING if lines else Verdict.EMPTY
