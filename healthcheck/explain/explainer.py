"""Explains a vLLM log: how far the start came, what stopped it, and what to do about it.

A cause goes before its wrappers whatever the order of lines; waits are judged by age and
progress; what no signature knows is given as the first real exception, "unclassified".
"""

from __future__ import annotations

import dataclasses
import functools
import re
import threading
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from healthcheck.explain import deaths, places
from healthcheck.explain.blocks import LONGEST_HEAD, Block, read_blocks
from healthcheck.explain.findings import (
    UNCLASSIFIED,
    Attempt,
    Evidence,
    Explanation,
    Finding,
    Verdict,
)
from healthcheck.explain.judging import CAUSES, Seen, Sorted, finding_of, headline_of, remedy_of
from healthcheck.explain.lines import (
    LONGEST_LINE,
    LONGEST_TEXT,
    LogClock,
    LogLine,
    clean,
    parse,
    pieces,
    printable,
    rank_of,
)
from healthcheck.explain.places import Places
from healthcheck.explain.prefixes import Prefixes, Unwrapped
from healthcheck.explain.records import ARRAYS
from healthcheck.explain.signatures import Phase, Severity, Signature, load
from healthcheck.explain.startup import NEW_START, START_LITERALS, Timeline
from healthcheck.explain.traces import (
    HEADER,
    IGNORED,
    QUIET_LEVELS,
    SAID,
    Closed,
    ExceptionSeen,
    Matched,
    Traces,
)
from healthcheck.explain.waits import Wait, Waits

MOST_PROCESSES = 16  # named for one finding
MOST_EVIDENCE = 3  # lines for one finding
MOST_EXCEPTIONS = 8  # unclassified ones kept, the first ones
MOST_WARNINGS = 8  # of RCCL that no signature knows, the first ones
MOST_ATTEMPTS = 8  # earlier starts in the same log, the last ones
MOST_STREAMS = 4  # of which a line may be there in part only
LONGEST_RECORD = 60  # lines, where a log has one field of a record a line
FIRST_LINES = 20  # looked at closely whatever they hold: the first stamp is among them

# Access lines and request echoes hold text of clients, which must not be able to name a cause.
_ACCESS = re.compile(r'INFO: {1,8}\S{1,80} - "')
_ECHO = re.compile(r"(?:Received request|Generated response|Request \S{1,200} details:) ")
# Of an exception of a request, the message may quote the client; what begins it is the server's.
_BEGINS_MESSAGE = re.compile(r"(?:\[\w{1,40}\] |[\w.]{1,200}: )?")
_WARNS = (Severity.WARN, Severity.TRANSIENT, Severity.BENIGN)
_ALONE = (Severity.WRAPPER, Severity.TRANSIENT, Severity.WARN, Severity.EXTERNAL)
_SHUTDOWN = "[shutdown] API server: shutdown triggered"
_THROUGHPUT = re.compile(r"generation throughput: {0,2}(\d{1,9}\.\d)")
_ERROR_LEVELS = ("ERROR", "CRITICAL")
_PARTS = ("stderr P", "stdout P")  # of the runtime of Kubernetes: the next line goes on


class _Attempt:
    """What one start has shown so far."""

    def __init__(self, began_s: float | None = None) -> None:
        self.timeline = Timeline(began_s)
        self.traces = Traces()
        self.waits = Waits()
        self.places = Places()
        self.rccl: list[tuple[bool, Evidence]] = []  # what it warned of
        self.seen: dict[tuple[str, bool, bool], Seen] = {}
        self.exceptions: list[tuple[bool, ExceptionSeen]] = []
        self.first_error: tuple[bool, Evidence] | None = None
        self.stopped = False


class Explainer:
    """Takes in a log line by line or block by block; `result` may be asked at any time.

    Memory stays bounded whatever the log holds. Safe to feed in one thread and to ask in another.
    Raises SignatureError if the shipped signatures are not sound.
    """

    def __init__(self, signatures: Iterable[Signature] | None = None) -> None:
        self._signatures = tuple(load() if signatures is None else signatures)
        self._by_id = {signature.id: signature for signature in self._signatures}
        texts = [text for signature in self._signatures for text in signature.literals]
        texts += [HEADER, IGNORED, NEW_START, _SHUTDOWN]
        texts += [*SAID, *deaths.LITERALS, deaths.NCCL_WARN, *places.LITERALS]
        self._telling = tuple(dict.fromkeys([*texts, *START_LITERALS]))
        self._prefixes = Prefixes(self._tells)
        self._parts: dict[str, str] = {}  # by stream, what has come of its line
        self._serving_literals = _fewest(tuple(texts))
        self._all_literals = _fewest((*texts, *START_LITERALS, *_ERROR_LEVELS))
        self._lock = threading.Lock()
        self._clock = LogClock()
        self._lines = 0
        self._attempt = _Attempt()
        self._earlier: list[Attempt] = []

    # --- taking in

    def feed(self, line: str, at: float | None = None) -> None:
        """Take in one line. `at` is its time in seconds on any one clock; without it the log's
        own stamps are used, as far as there are any."""
        with self._lock:
            for single in line.removesuffix("\n").split("\n"):
                self._lines += 1
                whole, *drawn_over = single.split("\r")
                self._take(whole, at, "")
                for part in drawn_over:
                    self._take(part, at, single)

    def feed_block(self, data: bytes) -> None:
        """Take in whole lines as bytes. Says the same as `feed` on each line, but passes over the
        lines that say nothing."""
        if not data:
            return
        with self._lock:
            block = Block(data)
            wanted = block.line_starts(self._literals(block))
            base, at, next_wanted = self._lines, 0, 0
            counted = 0
            while at < len(block):
                if not self._attentive():
                    while next_wanted < len(wanted) and wanted[next_wanted] < at:
                        next_wanted += 1
                    if next_wanted == len(wanted):
                        break
                    if wanted[next_wanted] > at:
                        self._note_time(block, wanted[next_wanted])
                    self._note_running(block, at, wanted[next_wanted])
                    base += block.newlines(counted, wanted[next_wanted])
                    at = counted = wanted[next_wanted]
                text, after = block.line_at(at)
                base += block.newlines(counted, at)
                self._lines = base + 1
                self._take(text, None, block.head_of(at))
                counted, at = at, after
            self._note_running(block, at, len(block))
            self._lines = (
                base + block.newlines(counted, len(block)) + (0 if data.endswith(b"\n") else 1)
            )
            self._note_time(block, len(block))

    def glance(self, unfinished: bytes) -> None:
        """Look at the bar in a line that no newline has ended yet: graph capture draws one. The
        line itself is still to be fed."""
        head, drawn, bar = unfinished.decode("utf-8", errors="replace").rpartition("\r")
        if not drawn:
            return
        with self._lock:
            for line in self._parse(bar, head.partition("\r")[0]):
                self._attempt.timeline.glance(line, self._clock.seconds)

    def silence(self, seconds: float) -> None:
        """The log has said nothing for `seconds` since its last line: waits grow older."""
        with self._lock:
            self._clock.wait(seconds)

    def _literals(self, block: Block) -> tuple[bytes, ...]:
        """What makes a line of `block` worth a look: least where a server serves and goes on to,
        and its first error line is known."""
        begins = self._lines < FIRST_LINES  # what wrote the log is not known yet
        more = _fewest(_PARTS) if begins or self._prefixes.streams else ()
        more += _fewest(ARRAYS) if begins or self._prefixes.arrays else ()
        attempt = self._attempt
        settled = attempt.timeline.ready and attempt.first_error and attempt.first_error[0]
        if settled and not block.line_starts([NEW_START.encode()]):
            return self._serving_literals + more
        return self._all_literals + more

    def _attentive(self) -> bool:
        """Whether every line matters now: a trace goes on, a process waits, or it just began."""
        attempt = self._attempt
        return (
            self._lines < FIRST_LINES
            or attempt.traces.open
            or attempt.waits.pending
            or bool(self._parts)
        )

    def _tells(self, text: str) -> bool:
        """Whether `text` holds what makes a line worth a look."""
        return any(one in text for one in self._telling)

    def _note_time(self, block: Block, start: int) -> None:
        """Take the time of what was passed over before `start`."""
        most = LONGEST_RECORD if self._prefixes.fields else 1
        for text in block.lines_before(start, most):
            for line in self._prefixes.unwrap(clean(text), learn=False):
                parsed = parse(line.text, line.stamp)
                self._clock.note(parsed, None)
                if parsed.stamp or parsed.logger_s is not None:
                    return

    def _note_running(self, block: Block, since: int, until: int) -> None:
        """Take the last counters of what is passed over."""
        line = block.last_before(until, since, places.RUNNING.encode())
        if line:
            self._attempt.places.count(line)

    def _take(self, text: str, at: float | None, head: str) -> None:
        """`head` begins the line of the file of which `text` is all, or what a bar drew over it."""
        if head and not text:
            return
        for line in self._parse(text, head):
            self._observe(line, at)

    def _parse(self, text: str, head: str) -> Iterator[LogLine]:
        text = clean(text)
        # What is learnt must be the same whether or not lines that say nothing are passed over.
        learn = self._lines <= FIRST_LINES or self._tells(text)
        for unwrapped in self._prefixes.unwrap(text, learn=learn):
            for line in self._whole(unwrapped):
                yield from self._own(line, head)

    def _whole(self, line: Unwrapped) -> Iterator[Unwrapped]:
        """The line with its earlier parts, or nothing while it is there in part only."""
        begun = self._parts.pop(line.stream, "") if self._parts else ""
        whole = line._replace(text=(begun + line.text)[:LONGEST_LINE])
        if not line.part:
            yield whole
        elif len(self._parts) < MOST_STREAMS:
            self._parts[line.stream] = whole.text

    def _own(self, unwrapped: Unwrapped, head: str) -> Iterator[LogLine]:
        for piece in pieces(unwrapped.text):
            line = parse(piece, unwrapped.stamp)
            if unwrapped.process:
                process = unwrapped.process
                line = line._replace(process=process, rank=rank_of(process), level=unwrapped.level)
            elif not line.process and head:
                begun = clean(head[:LONGEST_HEAD].partition("\r")[0])
                for owner in self._prefixes.unwrap(begun, learn=False):
                    named = parse(owner.text)
                    line = line._replace(process=named.process, rank=named.rank)
            yield line
            if _ACCESS.match(line.text) or _ECHO.match(line.text):
                return  # whatever else is in it, a client wrote

    def _observe(self, line: LogLine, at: float | None) -> None:
        now = self._clock.note(line, at)
        text = line.text
        if _ACCESS.match(text) or _ECHO.match(text):
            return
        if text.startswith(NEW_START) and self._attempt.timeline.begun:
            self._begin_again(now)
        attempt = self._attempt
        attempt.waits.pass_time(now)
        if attempt.traces.takes_frame(line):
            return
        matches = [one for one in self._matches(text) if self._credible(*one, line)]
        if any(signature.severity is Severity.BENIGN for signature, _ in matches):
            return
        was_ready = attempt.timeline.ready
        further = attempt.timeline.observe(line, now)
        if attempt.timeline.ready and not was_ready:
            attempt.places.serve()
            attempt.traces = Traces(serving=True)
            attempt.waits.end()
        if text.startswith(_SHUTDOWN) and not self._broken():
            attempt.stopped = True
        goes_on = line.level in QUIET_LEVELS or attempt.traces.within_quiet(line)
        for signature, match in matches:
            quiet = goes_on and signature.severity in CAUSES
            self._record(signature, match, line, now, quiet)
        alone = further or any(signature.severity in _ALONE for signature, _ in matches)
        matched = Matched(tuple(signature.id for signature, _ in matches), alone)
        for closed in attempt.traces.feed(line, self._lines, now, matched):
            self._record_trace(closed)
        attempt.places.note(text, self._lines)
        if places.RUNNING in text:
            attempt.places.count(text)
        if not matches and line.level not in QUIET_LEVELS:
            self._note_rccl(text)
        if not any(signature.severity is Severity.TRANSIENT for signature, _ in matches):
            attempt.waits.progress(line, now, further)
            if _generates(text):
                attempt.waits.tokens(now)
        self._note_error(line, bool(matches))

    def _broken(self) -> bool:
        """Whether the serving engine has failed, so that a shutdown is its consequence."""
        return any(
            era and not quiet and seen.signature.severity not in _WARNS
            for (_, era, quiet), seen in self._attempt.seen.items()
        )

    def _credible(self, signature: Signature, match: re.Match[str], line: LogLine) -> bool:
        """Whether the server itself says this, and not a client through the API process."""
        serving = self._attempt.timeline.ready and line.process.startswith("APIServer")
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

    def _begin_again(self, now: float | None) -> None:
        explanation = self._result()
        cause = explanation.cause.id if explanation.cause else ""
        self._earlier.append(Attempt(explanation.verdict, cause, self._lines - 1))
        del self._earlier[:-MOST_ATTEMPTS]
        self._attempt = _Attempt(now)

    def _record(
        self,
        signature: Signature,
        match: re.Match[str],
        line: LogLine,
        now: float | None,
        quiet: bool,
    ) -> None:
        attempt = self._attempt
        ready = attempt.timeline.ready
        if ready and (attempt.stopped or signature.severity is Severity.EXTERNAL):
            return  # a server that is being stopped may die as it likes
        values = {key: printable(value) for key, value in match.groupdict().items() if value}
        if signature.severity is Severity.TRANSIENT:
            attempt.waits.report(signature, line, self._lines, now, values)
        key = (signature.id, ready, quiet)
        seen = attempt.seen.get(key)
        if seen is None:
            seen = Seen(signature, quiet, line, self._lines, now, values, [], [])
            attempt.seen[key] = seen
        seen.count += 1
        if line.process not in seen.processes and len(seen.processes) < MOST_PROCESSES:
            seen.processes.append(line.process)
            if len(seen.evidence) < MOST_EVIDENCE:
                seen.evidence.append(self._evidence(match.string, match.start()))

    def _evidence(self, text: str, start: int = 0) -> Evidence:
        """The line from its beginning, or from the match where that lies far behind it."""
        begin = 0 if start < LONGEST_TEXT // 2 else start
        return Evidence(self._lines, printable(text[begin : begin + LONGEST_TEXT].strip()))

    def _record_trace(self, closed: Closed) -> None:
        attempt = self._attempt
        ready = attempt.timeline.ready
        if ready and attempt.stopped:
            return
        self._add_frames(closed)
        if closed.signatures or len(attempt.exceptions) >= MOST_EXCEPTIONS:
            return
        if all(not _same(closed.seen, known) for era, known in attempt.exceptions if era == ready):
            attempt.exceptions.append((ready, closed.seen))

    def _add_frames(self, closed: Closed) -> None:
        attempt = self._attempt
        crash = closed.seen.weight is not None
        for (name, era, quiet), seen in attempt.seen.items():
            same = era == attempt.timeline.ready and seen.line.process == closed.seen.process
            # The frames of a crash are those of what the same process said before it.
            of_it = name in closed.signatures or (crash and seen.signature.severity in CAUSES)
            if same and of_it and not quiet and not seen.frames:
                seen.frames = closed.seen.frames
            if crash and seen.line_number == closed.seen.line_number:
                seen.evidence[0] = Evidence(seen.line_number, closed.seen.text)
        if crash and closed.seen.frames:
            attempt.exceptions = [
                (era, dataclasses.replace(one, frames=one.frames or closed.seen.frames))
                if one.weight is not None and one.process == closed.seen.process
                else (era, one)
                for era, one in attempt.exceptions
            ]

    def _note_rccl(self, text: str) -> None:
        attempt = self._attempt
        if len(attempt.rccl) < MOST_WARNINGS and deaths.nccl_warning(text):
            attempt.rccl.append((attempt.timeline.ready, self._evidence(text)))

    def _note_error(self, line: LogLine, known: bool) -> None:
        attempt = self._attempt
        ready = attempt.timeline.ready
        if known or line.level not in _ERROR_LEVELS or attempt.traces.holds(line):
            return
        if attempt.first_error is None or attempt.first_error[0] != ready:
            attempt.first_error = (ready, self._evidence(line.text))

    # --- judging

    def result(self) -> Explanation:
        """What the log says so far; asking changes nothing."""
        with self._lock:
            return self._result()

    def _result(self) -> Explanation:
        attempt, now = self._attempt, self._clock.seconds
        ready = attempt.timeline.ready
        for unfinished in attempt.traces.unfinished():
            self._add_frames(unfinished)
        current = [seen for (_, era, _), seen in attempt.seen.items() if era == ready]
        exceptions = self._exceptions()
        waits = tuple(self._wait_finding(wait, now) for wait in attempt.waits.all())
        of = Sorted(current, waits, exceptions, ready, begun=attempt.timeline.begun)
        cause = self._located(of.cause())
        verdict = self._verdict(cause, of)
        before = [seen for (_, era, _), seen in attempt.seen.items() if era != ready]
        warned = [seen for seen in current if seen.signature.severity is Severity.WARN]
        warned += [seen for seen in current if seen.quiet and not of.has(seen.signature)]
        # A start that has failed takes no longer, however long its log is silent.
        failed = verdict.is_bad and not (cause and cause.state)
        startup = attempt.timeline.startup(self._clock.last_line_s if failed else now)
        return Explanation(
            verdict=verdict,
            headline=headline_of(verdict, cause, of, startup, stopped=attempt.stopped),
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
            first_error=self._first_error(ready),
            stopped=attempt.stopped,
            lines=self._lines,
            seconds=now,
            earlier_attempts=tuple(self._earlier),
        )

    def _located(self, cause: Finding | None) -> Finding | None:
        """The cause with what lines before it say of where and why it came about."""
        if cause is None:
            return None
        attempt = self._attempt
        if cause.id == UNCLASSIFIED and "nccl" in cause.evidence[0].text.lower():
            before = [
                one
                for era, one in attempt.rccl
                if era == attempt.timeline.ready and one.line_number < cause.line_number
            ]
            cause = dataclasses.replace(cause, evidence=(*before[:1], *cause.evidence))
        said = attempt.places.of(cause.id, cause.line_number)
        return dataclasses.replace(cause, remedy="; ".join((cause.remedy, *said)))

    def _first_error(self, ready: bool) -> Evidence | None:
        error = self._attempt.first_error
        return error[1] if error and error[0] == ready else None

    def _exceptions(self) -> tuple[ExceptionSeen, ...]:
        attempt = self._attempt
        ready = attempt.timeline.ready
        seen = [one for era, one in attempt.exceptions if era == ready]
        if not attempt.stopped:
            seen += [one.seen for one in attempt.traces.unfinished() if not one.signatures]
        named = sorted((one for one in seen if not one.cut_off), key=lambda one: one.line_number)
        cut_off = sorted((one for one in seen if one.cut_off), key=lambda one: one.line_number)
        return (*named, *cut_off)[:MOST_EXCEPTIONS]

    def _wait_finding(self, wait: Wait, now: float | None) -> Finding:
        attempt = self._attempt
        seen = next(seen for key, seen in attempt.seen.items() if key[0] == wait.signature.id)
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

    def _verdict(self, cause: Finding | None, of: Sorted) -> Verdict:
        if cause:
            return Verdict.FAILED
        if of.wrappers:
            return Verdict.CAUSE_NOT_IN_LOG
        if self._attempt.timeline.ready:
            return Verdict.STARTED
        return Verdict.LOADING if self._lines else Verdict.EMPTY


@functools.cache  # each start of a server is explained anew
def _fewest(texts: tuple[str, ...]) -> tuple[bytes, ...]:
    """Texts of which every line that holds any of `texts` holds one."""
    every = set(texts)
    return tuple(
        sorted(text.encode() for text in every if not any(o in text for o in every - {text}))
    )


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


# --- the command


def explain_stream(stream: BinaryIO, explainer: Explainer | None = None) -> Explanation:
    """Explain all of `stream`, which may be larger than memory.

    Raises UnreadableLogError for one that is no text.
    """
    explainer = explainer or Explainer()
    for block in read_blocks(stream):
        explainer.feed_block(block)
    return explainer.result()
