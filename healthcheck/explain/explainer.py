"""Explains a vLLM log: how far the start came, what stopped it, and what to do about it.

A cause goes before its wrappers whatever the order of lines; waits are judged by age and
progress; what no signature knows is given as the first real exception, "unclassified".
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from healthcheck.explain import deaths, places
from healthcheck.explain.blocks import LONGEST_HEAD, Block, read_blocks
from healthcheck.explain.concluding import conclude
from healthcheck.explain.course import ERROR_LEVELS, SHUTDOWN, Course
from healthcheck.explain.findings import Attempt, Explanation
from healthcheck.explain.lines import LONGEST_LINE, LogClock, LogLine, clean, parse, pieces, rank_of
from healthcheck.explain.prefixes import Prefixes, Unwrapped
from healthcheck.explain.records import ARRAYS
from healthcheck.explain.signatures import Signature, load
from healthcheck.explain.startup import NEW_START, START_LITERALS
from healthcheck.explain.traces import HEADER, IGNORED, SAID

MOST_ATTEMPTS = 8  # earlier starts in the same log, the last ones
MOST_STREAMS = 4  # of which a line may be there in part only
LONGEST_RECORD = 60  # lines, where a log has one field of a record a line
FIRST_LINES = 20  # looked at closely whatever they hold: the first stamp is among them

# Access lines and request echoes hold text of clients, which must not be able to name a cause.
_ACCESS = re.compile(r'INFO: {1,8}\S{1,80} - "')
_ECHO = re.compile(r"(?:Received request|Generated response|Request \S{1,200} details:) ")
_PARTS = ("stderr P", "stdout P")  # of the runtime of Kubernetes: the next line goes on


class Explainer:
    """Takes in a log line by line or block by block; `result` may be asked at any time.

    Memory stays bounded whatever the log holds. Safe to feed in one thread and to ask in another.
    """

    def __init__(self, signatures: Iterable[Signature] | None = None) -> None:
        self._signatures = tuple(load() if signatures is None else signatures)
        self._by_id = {signature.id: signature for signature in self._signatures}
        texts = [text for signature in self._signatures for text in signature.literals]
        texts += [HEADER, IGNORED, NEW_START, SHUTDOWN]
        texts += [*SAID, *deaths.LITERALS, deaths.NCCL_WARN, *places.LITERALS]
        self._telling = tuple(dict.fromkeys([*texts, *START_LITERALS]))
        self._prefixes = Prefixes(self._tells)
        self._parts: dict[str, str] = {}  # by stream, what has come of its line
        self._serving_literals = _fewest(tuple(texts))
        self._all_literals = _fewest((*texts, *START_LITERALS, *ERROR_LEVELS))
        self._lock = threading.Lock()
        self._clock = LogClock()
        self._lines = 0
        self._course = Course(self._signatures)
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
                self._course.timeline.glance(line, self._clock.seconds)

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
        course = self._course
        settled = course.timeline.ready and course.first_error and course.first_error[0]
        if settled and not block.line_starts([NEW_START.encode()]):
            return self._serving_literals + more
        return self._all_literals + more

    def _attentive(self) -> bool:
        """Whether every line matters now: a trace goes on, a process waits, or it just began."""
        course = self._course
        return (
            self._lines < FIRST_LINES
            or course.traces.open
            or course.waits.pending
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
            self._course.places.count(line)

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
        if _ACCESS.match(line.text) or _ECHO.match(line.text):
            return
        if line.text.startswith(NEW_START) and self._course.timeline.begun:
            self._begin_again(now)
        self._course.observe(line, self._lines, now)

    def _begin_again(self, now: float | None) -> None:
        explanation = self._result()
        cause = explanation.cause.id if explanation.cause else ""
        self._earlier.append(Attempt(explanation.verdict, cause, self._lines - 1))
        del self._earlier[:-MOST_ATTEMPTS]
        self._course = Course(self._signatures, now)

    # --- judging

    def result(self) -> Explanation:
        """What the log says so far; asking changes nothing."""
        with self._lock:
            return self._result()

    def _result(self) -> Explanation:
        return conclude(self._course, self._clock, self._lines, self._earlier)


@functools.cache  # each start of a server is explained anew
def _fewest(texts: tuple[str, ...]) -> tuple[bytes, ...]:
    """Texts of which every line that holds any of `texts` holds one."""
    every = set(texts)
    return tuple(
        sorted(text.encode() for text in every if not any(o in text for o in every - {text}))
    )


# --- the command


def explain_stream(stream: BinaryIO, explainer: Explainer | None = None) -> Explanation:
    """Explain all of `stream`, which may be larger than memory.

    Raises UnreadableLogError for one that is no text.
    """
    explainer = explainer or Explainer()
    for block in read_blocks(stream):
        explainer.feed_block(block)
    return explainer.result()
