"""What goes before what: a cause before its consequences, whatever the order of their lines.

Known causes go first, then waits that lasted too long, then what no signature knows: exceptions
and deaths in the order of the log, then exceptions without a traceback, then aborts, then
tracebacks that are cut off.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from healthcheck.explain.deaths import Weight
from healthcheck.explain.findings import NOT_IN_LOG, UNCLASSIFIED, Evidence, Finding, Verdict
from healthcheck.explain.lines import LogLine
from healthcheck.explain.signatures import Severity, Signature
from healthcheck.explain.startup import Startup
from healthcheck.explain.traces import ExceptionSeen, Frame

CAUSES = (Severity.FATAL, Severity.RETRY, Severity.TIMEOUT, Severity.EXTERNAL)


@dataclass
class Seen:
    """A signature as far as it was seen, in the part of the log before or after ready.

    It is `quiet` where whoever wrote the lines says that it goes on all the same.
    """

    signature: Signature
    quiet: bool
    line: LogLine
    line_number: int
    seconds: float | None
    values: dict[str, str]
    evidence: list[Evidence]
    processes: list[str]
    count: int = 0
    frames: tuple[Frame, ...] = ()


class Sorted:
    """The findings of the part of the log that counts, sorted by what they can be."""

    def __init__(
        self,
        current: list[Seen],
        waits: tuple[Finding, ...],
        exceptions: tuple[ExceptionSeen, ...],
        ready: bool,
        begun: bool,
    ) -> None:
        self.ready = ready
        current = sorted(current, key=lambda seen: seen.line_number)
        hard = (Severity.FATAL, Severity.RETRY)
        self.wrappers = _of(current, [Severity.WRAPPER])
        self._waits = waits
        self._overdue = [one for one in waits if one.state == "overdue"]
        # After ready an exception is some request's, unless the engine went with it.
        matters = not ready or bool(self.wrappers)
        unknown = [one for one in exceptions if matters or one.weight is not None]
        # What is only said may have been overcome, unless something failed or this is an excerpt,
        # of which what the API process says may be a client's.
        if not self.wrappers:
            unknown = [
                one
                for one in unknown
                if not one.said or not (begun or one.process.startswith("APIServer"))
            ]
        engine = [one for one in unknown if not one.process.startswith("APIServer")]
        self._unknown = engine if ready and engine else unknown
        self.causes = _of([seen for seen in current if not seen.quiet], CAUSES)
        # What somebody went on without is a cause only of a failure that nothing else explains.
        if self.wrappers and not (self.causes or self._overdue or self._unknown):
            self.causes = _of(current, CAUSES)
        self._hard = [one for one in self.causes if one.severity in hard]
        self._soft = [one for one in self.causes if one.severity not in hard]

    def has(self, signature: Signature) -> bool:
        """Whether a signature is among the causes."""
        return any(one.id == signature.id for one in self.causes)

    def cause(self) -> Finding | None:
        """The finding to mend first, or None."""
        by_worth: list[list[Finding]] = [[], [], [], []]
        for one in self._unknown:
            worth = 3 if one.cut_off else 2 if one.weight is Weight.ABORT else int(one.said)
            by_worth[worth].append(_unclassified(one))
        named, said, aborts, cut_off = by_worth
        later = sorted([*self._soft, *named], key=lambda one: one.line_number)
        for choice in (self._hard, self._overdue, later, said, aborts, cut_off):
            if choice:
                return self._wait_behind(choice[0])
        return None

    def _wait_behind(self, cause: Finding) -> Finding:
        """A time-out says less than the wait it ended, but the engine's wait for its workers says
        less than what a worker tells."""
        if cause.severity is Severity.TIMEOUT:
            told = cause.process.startswith(("Worker", "rank"))
            for wait in self._waits:
                before = wait.state == "waiting" and wait.line_number < cause.line_number
                if before and not (told and wait.process.startswith("EngineCore")):
                    return wait
        return cause


def _of(seen: Iterable[Seen], severities: Iterable[Severity]) -> tuple[Finding, ...]:
    wanted = tuple(severities)
    return tuple(finding_of(one) for one in seen if one.signature.severity in wanted)


class _NotSaid(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "not said"


def remedy_of(signature: Signature, values: dict[str, str]) -> str:
    """What to do, with what the line says."""
    return signature.remedy.format_map(_NotSaid(values))


def finding_of(seen: Seen) -> Finding:
    """A signature that was seen, as the explanation gives it."""
    signature = seen.signature
    return Finding(
        id=signature.id,
        severity=signature.severity,
        phase=signature.phase,
        process=seen.line.process,
        rank=seen.line.rank,
        line_number=seen.line_number,
        seconds=seen.seconds,
        remedy=remedy_of(signature, seen.values),
        source=signature.source,
        count=seen.count,
        processes=tuple(seen.processes),
        evidence=tuple(seen.evidence),
        values=dict(seen.values),
        frames=seen.frames,
    )


def _unclassified(seen: ExceptionSeen) -> Finding:
    what = "exception" if seen.weight is None else "line of native code"
    return Finding(
        id=UNCLASSIFIED,
        severity=Severity.FATAL,
        phase="any",
        process=seen.process,
        rank=seen.rank,
        line_number=seen.line_number,
        seconds=seen.seconds,
        remedy=f"no signature knows this {what}: read its last frames, and search for its text",
        source="this log",
        processes=(seen.process,),
        evidence=(Evidence(seen.line_number, seen.text),),
        values={"cut_off": "yes"} if seen.cut_off else {},
        frames=seen.frames,
    )


def headline_of(
    verdict: Verdict,
    cause: Finding | None,
    of: Sorted,
    startup: Startup | None,
    *,
    stopped: bool,
) -> str:
    """What happened, in whom, and how far the start had come, in one line."""
    reached = startup.reached if startup else "nothing"
    if cause:
        who = f" in {cause.process}" if cause.process else ""
        when = "while serving" if of.ready else f"at {reached}"
        what = cause.evidence[0].text if cause.evidence else cause.remedy
        return f"{cause.id}{who}, {when}: {what}"
    if verdict is Verdict.CAUSE_NOT_IN_LOG:
        return f"{NOT_IN_LOG}: only its consequences are ({', '.join(w.id for w in of.wrappers)})"
    if verdict is Verdict.STARTED:
        return "the server started" + (" and was stopped later" if stopped else "")
    if verdict is Verdict.EMPTY:
        return "the log is empty"
    return f"no fault so far; the start has reached: {reached}"
