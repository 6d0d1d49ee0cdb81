"""The parts of the smoke test in their order, and the run through them or others."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from healthcheck.judge import Outcome
from healthcheck.smoke import load, long_prompts, speculation, start, surface, text, tools
from healthcheck.smoke.results import Check, Report
from healthcheck.smoke.target import Session, Stopped, Target
from healthcheck.smoke.terminal import Console, line

LISTENING = "listening"
R = TypeVar("R", bound=Report)


@dataclass(frozen=True)
class Part:
    """A part of the test: its name, its rows, and whether the verdict can do without it."""

    name: str
    rows: Callable[[Session], Iterator[Check]]
    optional: bool = False


PARTS = (
    Part(LISTENING, start.listening),
    Part("version", start.version),
    Part("ready", start.ready),
    Part("first answer", text.warm_up),
    Part("sampling", text.sampled),
    Part("surface", surface.surface),
    Part("speculation", speculation.acceptance),
    Part("greedy", text.greedy, optional=True),
    Part("reasoning", surface.reasoning, optional=True),
    Part("tools", tools.tools, optional=True),
    Part("long", long_prompts.needle, optional=True),
    Part("concurrency", load.concurrency, optional=True),
    Part("speed-up", speculation.speed_up),
)
OPTIONAL = tuple(part.name for part in PARTS if part.optional)


def run(target: Target) -> Report:
    """Every part in order; a server that never comes up ends the run early, with its row."""
    report = begun(Report, target)
    through(PARTS, target, report)
    return report


def begun(kind: type[R], target: Target, **more: Any) -> R:
    """A report of some kind that says what is looked at, and no more yet."""
    return kind(
        target=target.client.base_url,
        profile=target.profile.name,
        evidence=target.profile.evidence,
        model=target.model,
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        speculates=target.speculates,
        rehearsal=target.profile.is_rehearsal,
        reference=asdict(target.profile.reference),
        **more,
    )


def through(parts: Sequence[Part], target: Target, report: Report) -> None:
    """Run the parts in order and put their rows into the report."""
    began = time.monotonic()
    with Console(target.say, sys.stderr) as console:
        session = Session(target, report, console.say)
        try:
            _all(parts, session, console)
        except Stopped as e:
            check = Check("server", Outcome.BAD, f"{e}; its log tells why")
            report.checks.append(check)
            console.say(line(check))
    report.timings_s["total"] = time.monotonic() - began


def _all(parts: Sequence[Part], session: Session, console: Console) -> None:
    target, report = session.target, session.report
    asked = [part for part in parts if _asked(part, session)]
    for number, part in enumerate(asked):
        console.stage(number, len(asked), part.name)
        rows = []
        for check in part.rows(session):
            console.say(line(check))
            rows.append(check)
            report.checks.append(check)
        held = all(check.outcome is Outcome.GOOD for check in rows)
        if not held and part.name == LISTENING:
            return
        if not held and (end := target.ended()) is not None:
            raise Stopped(f"{end} during {part.name}")


def _asked(part: Part, session: Session) -> bool:
    if not part.optional or session.target.asks(part.name):
        return True
    left = session.target.is_full
    session.report.leave_out(part.name, "by --without" if left else "asked for with --full")
    return False
