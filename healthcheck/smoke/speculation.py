"""Speculation: acceptance by position against the reference, and what it gains."""

from __future__ import annotations

import time
from collections.abc import Iterator

from deploy.recipe import Health
from healthcheck.client.answers import Failure
from healthcheck.client.exposition import Exposition, Speculation
from healthcheck.judge import Outcome
from healthcheck.judge.acceptance import Acceptance, collapsed
from healthcheck.service.generate import scrape
from healthcheck.smoke import load
from healthcheck.smoke.figures import ratio
from healthcheck.smoke.load import Request
from healthcheck.smoke.results import Check, Report, SpeedUp
from healthcheck.smoke.target import Session, fault

# Rounds of requests, until there are enough drafts to tell a dead draft from bad luck, and one that
# is always right from a good one: of 0.99, 536 drafts are sure.
ROUNDS = 12
CONCURRENT = 4
ALONE = 8  # lone requests, where no other part has asked them

# Tokens per second of lone requests, with a draft and without.
Rates = tuple[tuple[float, ...], tuple[float, ...]]


def acceptance(session: Session) -> Iterator[Check]:
    """Draft enough, several requests at once, that acceptance is a figure and not a chance.

    Only these requests are counted: what came before differs from run to run, and acceptance by
    what is written, so that two reports could not be compared. The requests are streams: where no
    other part measures speed, they give it.
    """
    target, report = session.target, session.report
    deadline_s = target.profile.health.probe_timeout_s
    if not target.speculates:
        report.leave_out("speculation", "the server is said to serve without a draft")
        return
    before = _counted(scrape(target.client, deadline_s))
    if isinstance(before, Check):
        yield before
        return
    began = time.monotonic()
    ran: list[Request] = []
    counted = Speculation()
    busy_s = 0.0
    for round_number in range(ROUNDS):
        asked_at = time.monotonic()
        ran += load.at_once(target, CONCURRENT, CONCURRENT, f"round-{round_number}")
        busy_s += time.monotonic() - asked_at
        after = _counted(scrape(target.client, deadline_s))
        if isinstance(after, Check):
            yield after
            return
        counted = after.since(before)
        if _is_enough(Acceptance.of(counted), target.profile.health):
            break
    report.acceptance = Acceptance.of(counted)
    yield _judged(session, counted, time.monotonic() - began)
    if not target.asks("concurrency"):
        report.levels.append(load.level(CONCURRENT, ran, busy_s))
        yield load.judged(report.levels[-1], ran)


def _is_enough(seen: Acceptance | None, budgets: Health) -> bool:
    """Whether more drafts would change nothing."""
    if seen is None or seen.drafts < budgets.acceptance_window_drafts:
        return False
    if not seen.intervals or seen.per_position[0] <= budgets.acceptance_ceiling:
        return True
    return seen.intervals[0][0] > budgets.acceptance_ceiling


def _counted(seen: Exposition | Failure) -> Speculation | Check:
    """The counters of a scrape, or the row that says why there are none."""
    if not isinstance(seen, Exposition):
        return fault("acceptance", Outcome.UNKNOWN, "metrics.unavailable", seen.detail)
    counted = seen.speculation()
    if counted is not None:
        return counted
    if not seen.engines:
        return fault("acceptance", Outcome.UNKNOWN, "metrics.no_engine", "no engine")
    return fault("acceptance", Outcome.BAD, "speculation.absent", "no counters of drafts")


def _judged(session: Session, counted: Speculation, elapsed_s: float) -> Check:
    budgets = session.target.profile.health
    seen = session.report.acceptance
    if seen is None:
        words = f"{counted.drafts:.0f} drafts"
        return fault("acceptance", Outcome.BAD, "speculation.not_drafting", words, elapsed_s)
    low, high = seen.intervals[0] if seen.intervals else (0.0, 1.0)
    evidence = (
        f"{seen.rate:.1%} of {seen.draft_tokens} draft tokens, {seen.drafted_per_step:.0f} a step, "
        f"length {seen.length:.2f}, position 0 {low:.0%} to {high:.0%}"
    )
    if high < budgets.acceptance_floor:
        evidence += f", under {budgets.acceptance_floor:.0%}"
        return Check("acceptance", Outcome.BAD, evidence, elapsed_s, "acceptance.low")
    if collapsed(counted) is Outcome.BAD:
        return Check("acceptance", Outcome.BAD, evidence, elapsed_s, "acceptance.collapsed")
    if low > budgets.acceptance_ceiling:
        return Check("acceptance", Outcome.UNKNOWN, evidence, elapsed_s, "acceptance.high")
    if seen.drafts < budgets.acceptance_window_drafts:
        evidence += f", only {seen.drafts} drafts"
        return Check("acceptance", Outcome.UNKNOWN, evidence, elapsed_s, "acceptance.insufficient")
    evidence += _beside(session, low, high)
    return Check("acceptance", Outcome.GOOD, evidence, elapsed_s)


def _beside(session: Session, low: float, high: float) -> str:
    """Where the reference's first position lies; it says nothing about generated models."""
    if session.target.profile.is_rehearsal:
        return ""
    published = session.target.profile.reference.acceptance_position_0
    where = "above" if low > published else "below" if high < published else "about"
    return f", {where} the reference's {published:.0%} (of another workload)"


def speed_up(session: Session) -> Iterator[Check]:
    """A lone request with and without speculation, if there is something to compare with."""
    against = session.target.baseline
    if not session.target.speculates:
        session.report.leave_out("speed-up", "the server is said to serve without a draft")
        return
    if against is None:
        session.report.leave_out(
            "speed-up", "no --baseline, the report of a server without speculation, was given"
        )
        return
    name = against.target
    began = time.monotonic()
    rates = _rates(session, against)
    took = time.monotonic() - began
    if isinstance(rates, str):
        yield fault("speed-up", Outcome.UNKNOWN, "baseline.unusable", rates, took)
        return
    with_draft, without = rates
    seen = SpeedUp(name, *ratio(with_draft, without), len(with_draft))
    session.report.speed_up = seen
    words = f"{seen.ratio:.2f} times the tokens/s of {name} ({seen.low:.2f} to {seen.high:.2f})"
    if session.target.profile.is_rehearsal:
        why = "kernels that are interpreted say nothing about speed; the ratio is shown as it is"
        session.report.leave_out("speed-up verdict", why)
    elif seen.high < 1:
        yield fault("speed-up", Outcome.BAD, "speculation.no_gain", words, took)
        return
    yield Check("speed-up", Outcome.GOOD, words, took)


def _rates(session: Session, against: Report) -> Rates | str:
    """The rates of a lone request here and in a report; a reason in words if there are none."""
    mine, its = session.report.level(1), against.level(1)
    if against.speculates:
        return f"the report of {against.target} was made with speculation"
    if its is None or not its.request_rates:
        return f"the report of {against.target} has no figures of a lone request"
    if mine is None:
        mine = load.level(1, load.at_once(session.target, 1, ALONE, "alone"))
        session.report.levels.insert(0, mine)
    if not mine.request_rates:
        return "no lone request was answered here"
    return mine.request_rates, its.request_rates
