"""What an explanation of a log is made of: frozen values that json can write."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum

from healthcheck.explain.signatures import Severity
from healthcheck.explain.startup import Startup
from healthcheck.explain.traces import ExceptionSeen, Frame

UNCLASSIFIED = "unclassified"  # the id of a finding that no signature knows
NOT_IN_LOG = "cause not in this log"


class Verdict(StrEnum):
    """What the log as a whole says."""

    STARTED = "started"
    FAILED = "failed"
    CAUSE_NOT_IN_LOG = "cause-not-in-log"
    LOADING = "loading"  # neither ready nor a fault so far
    EMPTY = "empty"

    @property
    def is_bad(self) -> bool:
        """The start failed, whether the log tells why or not."""
        return self in (Verdict.FAILED, Verdict.CAUSE_NOT_IN_LOG)


@dataclass(frozen=True)
class Evidence:
    """A line of the log: its number, from 1, and its text, cut and made printable."""

    line_number: int
    text: str


@dataclass(frozen=True)
class Finding:
    """A signature that was seen, or an unclassified exception, with what is known about it.

    `seconds` count from the first line of the log. `state` is waiting, overdue or ended for a
    transient one, and `waited_s` its age without progress.
    """

    id: str
    severity: Severity
    phase: str
    process: str
    rank: str
    line_number: int
    seconds: float | None
    remedy: str
    source: str
    count: int = 1
    processes: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    values: dict[str, str] = field(default_factory=dict)
    frames: tuple[Frame, ...] = ()
    state: str = ""
    waited_s: float | None = None


@dataclass(frozen=True)
class Attempt:
    """An earlier start in the same log, as a restarting container leaves it."""

    verdict: Verdict
    cause: str
    last_line: int


@dataclass(frozen=True)
class Explanation:
    """Everything the log says. `findings` are causes in the order of the log; `cause` is the one
    to mend first; `exceptions` are those that no signature knows."""

    verdict: Verdict
    headline: str
    cause: Finding | None
    startup: Startup | None
    findings: tuple[Finding, ...]
    exceptions: tuple[ExceptionSeen, ...]
    wrappers: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    waits: tuple[Finding, ...]
    first_error: Evidence | None
    stopped: bool
    lines: int
    seconds: float | None
    earlier_attempts: tuple[Attempt, ...]

    def as_dict(self) -> dict[str, object]:
        """The explanation as plain values that json can write."""
        return dataclasses.asdict(self)
