"""The course of one start: what its lines have shown so far, one after the other."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from healthcheck.explain import deaths, places
from healthcheck.explain.findings import Evidence
from healthcheck.explain.judging import CAUSES, Seen
from healthcheck.explain.lines import LONGEST_TEXT, LogLine, printable
from healthcheck.explain.places import Places
from healthcheck.explain.signatures import Phase, Severity, Signature
from healthcheck.explain.startup import Timeline
from healthcheck.explain.traces import QUIET_LEVELS, Closed, ExceptionSeen, Matched, Traces
from healthcheck.explain.waits import Waits

MOST_PROCESSES = 16  # named for one finding
MOST_EVIDENCE = 3  # lines for one finding
MOST_EXCEPTIONS = 8  # unclassified ones kept, the first ones
MOST_WARNINGS = 8  # of RCCL that no signature knows, the first ones
# Of an exception of a request, the message may quote the client; what begins it is the server's.
_BEGINS_MESSAGE = re.compile(r"(?:\[\w{1,40}\] |[\w.]{1,200}: )?")
_WARNS = (Severity.WARN, Severity.TRANSIENT, Severity.BENIGN)
_ALONE = (Severity.WRAPPER, Severity.TRANSIENT, Severity.WARN, Severity.EXTERNAL)
SHUTDOWN = "[shutdown] API server: shutdown triggered"
_THROUGHPUT = re.compile(r"generation throughput: {0,2}(\d{1,9}\.\d)")
ERROR_LEVELS = ("ERROR", "CRITICAL")


class Course:
    """What one start has shown so far."""

    def __init__(self, signatures: Sequence[Signature], began_s: float | None = None) -> None:
        self._signatures = signatures
        self._number = 0
        self.timeline = Timeline(began_s)
        self.traces = Traces()
        self.waits = Waits()
        self.places = Places()
        self.rccl: list[tuple[bool, Evidence]] = []  # what it warned of
        self.seen: dict[tuple[str, bool, bool], Seen] = {}
        self.exceptions: list[tuple[bool, ExceptionSeen]] = []
        self.first_error: tuple[bool, Evidence] | None = None
        self.stopped = False

    def observe(self, line: LogLine, number: int, now: float | None) -> None:
        """Take in a line that the server wrote itself, the `number`th of its log."""
        self._number = number
        text = line.text
        self.waits.pass_time(now)
        if self.traces.takes_frame(line):
            return
        matches = [one for one in self._matches(text) if self._credible(*one, line)]
        if any(signature.severity is Severity.BENIGN for signature, _ in matches):
            return
        was_ready = self.timeline.ready
        further = self.timeline.observe(line, now)
        if self.timeline.ready and not was_ready:
            self.places.serve()
            self.traces = Traces(serving=True)
            self.waits.end()
        if text.startswith(SHUTDOWN) and not self._broken():
            self.stopped = True
        goes_on = line.level in QUIET_LEVELS or self.traces.within_quiet(line)
        for signature, match in matches:
            quiet = goes_on and signature.severity in CAUSES
            self._record(signature, match, line, now, quiet)
        alone = further or any(signature.severity in _ALONE for signature, _ in matches)
        matched = Matched(tuple(signature.id for signature, _ in matches), alone)
        for closed in self.traces.feed(line, self._number, now, matched):
            self._record_trace(closed)
        self.places.note(text, self._number)
        if places.RUNNING in text:
            self.places.count(text)
        if not matches and line.level not in QUIET_LEVELS:
            self._note_rccl(text)
        if not any(signature.severity is Severity.TRANSIENT for signature, _ in matches):
            self.waits.progress(line, now, further)
            if _generates(text):
                self.waits.tokens(now)
        self._note_error(line, bool(matches))

    def _broken(self) -> bool:
        """Whether the serving engine has failed, so that a shutdown is its consequence."""
        return any(
            era and not quiet and seen.signature.severity not in _WARNS
            for (_, era, quiet), seen in self.seen.items()
        )

    def _credible(self, signature: Signature, match: re.Match[str], line: LogLine) -> bool:
        """Whether the server itself says this, and not a client through the API process."""
        serving = self.timeline.ready and line.process.startswith("APIServer")
        if not serving or signature.severity in _WARNS:
            return True
        if signature.phase not in (Phase.SERVE, Phase.ANY):
            return False
        return _BEGINS_MESSAGE.fullmatch(line.text, 0, match.start()) is not None

    def _matches(self, text: str) -> list[tuple[Signature, re.Match[str]]]:
        found = []
        for signature in self._signatures:
            for literal in signature.literals:
                if literal in text:
                    if match := signature.pattern.search(text):
                        found.append((signature, match))
                    break
        return found

    def _record(
        self,
        signature: Signature,
        match: re.Match[str],
        line: LogLine,
        now: float | None,
        quiet: bool,
    ) -> None:
        ready = self.timeline.ready
        if ready and (self.stopped or signature.severity is Severity.EXTERNAL):
            return  # a server that is being stopped may die as it likes
        values = {key: printable(value) for key, value in match.groupdict().items() if value}
        if signature.severity is Severity.TRANSIENT:
            self.waits.report(signature, line, self._number, now, values)
        key = (signature.id, ready, quiet)
        seen = self.seen.get(key)
        if seen is None:
            seen = Seen(signature, quiet, line, self._number, now, values, [], [])
            self.seen[key] = seen
        seen.count += 1
        if line.process not in seen.processes and len(seen.processes) < MOST_PROCESSES:
            seen.processes.append(line.process)
            if len(seen.evidence) < MOST_EVIDENCE:
                seen.evidence.append(self._evidence(match.string, match.start()))

    def _evidence(self, text: str, start: int = 0) -> Evidence:
        """The line from its beginning, or from the match where that lies far behind it."""
        begin = 0 if start < LONGEST_TEXT // 2 else start
        return Evidence(self._number, printable(text[begin : begin + LONGEST_TEXT].strip()))

    def _record_trace(self, closed: Closed) -> None:
        ready = self.timeline.ready
        if ready and self.stopped:
            return
        self.add_frames(closed)
        if closed.signatures or len(self.exceptions) >= MOST_EXCEPTIONS:
            return
        if all(not _same(closed.seen, known) for era, known in self.exceptions if era == ready):
            self.exceptions.append((ready, closed.seen))

    def add_frames(self, closed: Closed) -> None:
        crash = closed.seen.weight is not None
        for (name, era, quiet), seen in self.seen.items():
            same = era == self.timeline.ready and seen.line.process == closed.seen.process
            # The frames of a crash are those of what the same process said before it.
            of_it = name in closed.signatures or (crash and seen.signature.severity in CAUSES)
            if same and of_it and not quiet and not seen.frames:
                seen.frames = closed.seen.frames
            if crash and seen.line_number == closed.seen.line_number:
                seen.evidence[0] = Evidence(seen.line_number, closed.seen.text)
        if crash and closed.seen.frames:
            self.exceptions = [
                (era, dataclasses.replace(one, frames=one.frames or closed.seen.frames))
                if one.weight is not None and one.process == closed.seen.process
                else (era, one)
                for era, one in self.exceptions
            ]

    def _note_rccl(self, text: str) -> None:
        if len(self.rccl) < MOST_WARNINGS and deaths.nccl_warning(text):
            self.rccl.append((self.timeline.ready, self._evidence(text)))

    def _note_error(self, line: LogLine, known: bool) -> None:
        ready = self.timeline.ready
        if known or line.level not in ERROR_LEVELS or self.traces.holds(line):
            return
        if self.first_error is None or self.first_error[0] != ready:
            self.first_error = (ready, self._evidence(line.text))


def _same(one: ExceptionSeen, other: ExceptionSeen) -> bool:
    """Whether two ranks, or one rank twice, raised the same exception."""
    return (one.kind, one.message, one.frames[-1:]) == (
        other.kind,
        other.message,
        other.frames[-1:],
    )


def _generates(text: str) -> bool:
    found = _THROUGHPUT.search(text) if "throughput" in text else None
    return bool(found) and float(found[1]) > 0 if found else False
