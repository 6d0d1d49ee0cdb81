"""The server under test, what its questions have in common, and the findings as rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from deploy.recipe import Profile
from healthcheck.client import Client
from healthcheck.client.answers import Answer, Failure
from healthcheck.judge import GRAVITY, Finding, Outcome, judge, worst
from healthcheck.reasons import reason
from healthcheck.service.generate import Generator
from healthcheck.smoke.results import Check, Report
from healthcheck.verdict import Policy

# Seconds that the long prompts, and each concurrency, may take.
BUDGET_S = 300.0


class Stopped(RuntimeError):
    """The server is gone and will not answer; the message says how it ended."""


@dataclass(frozen=True)
class Target:
    """The server under test and how long to wait for it. `ended` says how it ended, else None.

    `full` None: everything, but on the CPU rehearsal only what is quick there. `without` names
    parts to leave out, `baseline` the report of one without speculation. `say` takes a
    line that is told.
    """

    client: Client
    profile: Profile
    model: str
    wait_s: float
    health: Client | None = None
    speculation: bool = True
    ended: Callable[[], str | None] = lambda: None
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)
    full: bool | None = None
    without: Collection[str] = ()
    baseline: Report | None = None
    budget_s: float = BUDGET_S

    @property
    def speculates(self) -> bool:
        """Whether the server drafts; `speculation` is the entrypoint's switch."""
        return self.profile.speculative is not None and self.speculation

    @property
    def is_full(self) -> bool:
        """Whether the parts that take minutes on a CPU are asked for."""
        return not self.profile.is_rehearsal if self.full is None else self.full

    def asks(self, part: str) -> bool:
        """Whether an optional part is asked for."""
        return self.is_full and part not in self.without

    @cached_property
    def generator(self) -> Generator:
        """Asks for generations as the health gate does."""
        policy = Policy(self.profile.health, self.model, self.speculates)
        return Generator(self.client, policy)


@dataclass
class Session:
    """A run in progress: the target, the report that it fills, and whether a health service has
    seen it generate."""

    target: Target
    report: Report
    say: Callable[[str], None]
    generated: bool = False


def row(finding: Finding, elapsed_s: float, name: str | None = None) -> Check:
    """A finding of the health gate as a row."""
    words = ", ".join(f"{k}={_short(v)}" for k, v in finding.evidence.items())
    code = "" if finding.outcome is Outcome.GOOD else finding.code
    known = reason(code)
    if known is not None:
        words = known.meaning + (f" ({words})" if words else "")
    return Check(name or finding.check, finding.outcome, words or "held", elapsed_s, code)


def fault(name: str, outcome: Outcome, code: str, seen: str, elapsed_s: float = 0.0) -> Check:
    """A row that did not hold: the meaning of its code, with what was seen."""
    return row(Finding(name, outcome, code, {"seen": seen}), elapsed_s)


def refusal(name: str, answer: Answer | Failure) -> Check:
    """The row of an answer that is none."""
    findings, _ = judge(answer, asked_tokens=1, exactly=False, scored=False)
    outcome = worst(findings)
    if outcome is Outcome.GOOD:  # a completion, where something else was asked for
        words = "an answer of another kind"
        return fault(name, Outcome.UNKNOWN, "answer.malformed", words, answer.elapsed_s)
    found = next((f for f in findings if f.outcome is outcome), findings[0])
    return row(found, answer.elapsed_s, name)


def gravest(checks: Iterable[Check]) -> Check | None:
    """The first of the worst rows, None of none."""
    return max(checks, key=lambda check: GRAVITY[check.outcome], default=None)


def _short(value: object) -> str:
    if isinstance(value, list):
        return " ".join(_short(each) for each in value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)
