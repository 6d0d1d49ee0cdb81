"""Exceptions and crashes put together again from a log in which several processes write at once.

A traceback has a header, frames and a message, of one line or several. An exception may also be
said without its traceback, and what dies in native code has lines of its own (deaths.py).
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from healthcheck.explain.deaths import THREAD, WHAT, Weight, weight_of
from healthcheck.explain.lines import LONGEST_TEXT, LogLine, printable

HEADER = "Traceback (most recent call last)"
IGNORED = "Exception ignored in"  # Python goes on after the trace that follows
GROUP = "Exception Group "  # before HEADER: the parts, which follow, say what went wrong
# What a line holds that says an exception by its name; the names end so.
SAID = ("Error: ", "Exception: ")

LAST_FRAMES = 8  # of a trace, kept for the report
MOST_OPEN = 64  # traces open at once; a rank has one, or two while it logs and raises
MESSAGE_LINES = 6  # of an exception whose text has several lines, as pydantic's have
MOST_TRACES = 400  # taken apart in one start; more are the same again, and cost time
MOST_REQUEST_TRACES = 16  # of the API processes of a server that serves: one per bad request
PATIENCE = 2_000  # lines of others after which a trace that does not go on is taken as cut off
PATIENCE_SAID = 50  # the same for an exception without a traceback, of which a line may follow

_FRAME = re.compile(r'\s{1,12}File "([^"]{1,400})", line (\d{1,7})(?:,? in (.{1,200}))?')
_EXCEPTION = re.compile(
    r"(?!(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):)([A-Za-z_][\w.]{0,200})(?:: (.*)|:?$)", re.DOTALL
)
_SAID = re.compile(
    r"(?P<kind>[A-Za-z_][\w.]{0,200}?(?:Error|Exception))"
    r": (?P<message>\S.*)",
    re.DOTALL,
)
# A line of something else, which does not go on with a message.
_OTHER = re.compile(r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|\[aiter\]|\[[A-Z]\d{4} |\S{0,80}%\|")
# What goes on with a message whoever wrote it: a field of pydantic's, RCCL's second line, HIP's.
_GOES_ON = re.compile(r"[a-z_][\w.]{0,200}$|nccl\w{1,40}Error: |Last error:|Search for `hip")
QUIET_LEVELS = ("DEBUG", "INFO", "WARNING")  # whoever logs a fault so, goes on without


@dataclass(frozen=True)
class Frame:
    """One frame of a traceback: file, line, function and, where it was printed, the code."""

    file: str
    line: int
    function: str = ""
    code: str = ""


@dataclass(frozen=True)
class ExceptionSeen:
    """An exception with its last frames. `kind` is empty where the log ends before the name.

    `weight` is that of a death in native code; `said` is one that stands there without a traceback.
    """

    kind: str
    message: str
    process: str
    rank: str
    line_number: int
    seconds: float | None
    frames: tuple[Frame, ...]
    cut_off: bool = False
    weight: Weight | None = None
    said: bool = False

    @property
    def text(self) -> str:
        """Name and message in one line."""
        name = self.kind or "a traceback that is cut off"
        return printable(f"{name}: {self.message}" if self.message else name)


@dataclass
class _Open:
    header: LogLine
    line_number: int
    seconds: float | None
    touched: int
    margin: str = ""  # by which the whole trace is indented
    quiet: bool = False  # whether whoever printed it went on
    frames: deque[Frame] = field(default_factory=lambda: deque(maxlen=LAST_FRAMES))
    kind: str = ""
    message: list[str] = field(default_factory=list)
    signatures: list[str] = field(default_factory=list)
    weight: Weight | None = None
    said: bool = False
    collects: bool = True  # whether the frames that follow are those of the thread that died


class Matched(NamedTuple):
    """The ids of the signatures that a line matched, and whether it is `alone`: a wrapper, a wait
    or a mark of the start, which goes on with no message."""

    ids: tuple[str, ...] = ()
    alone: bool = False


@dataclass(frozen=True)
class Closed:
    """A finished trace and the ids of the signatures that its last lines matched."""

    seen: ExceptionSeen
    signatures: tuple[str, ...]


class Traces:
    """Tracebacks by process; a logged one and a printed one of the same process are two.

    Of a server that is `serving`, only the first few of the API processes are taken in.
    """

    def __init__(self, serving: bool = False) -> None:
        self._serving = serving
        self._left = MOST_TRACES
        self._requests_left = MOST_REQUEST_TRACES if serving else MOST_TRACES
        self._open: OrderedDict[tuple[str, bool], _Open] = OrderedDict()
        self._ignored_next: set[tuple[str, bool]] = set()
        self._count = 0

    @property
    def open(self) -> bool:
        """Whether the next lines may belong to a trace."""
        return bool(self._open)

    def holds(self, line: LogLine) -> bool:
        """Whether whoever wrote a line is at a trace."""
        return (line.process, bool(line.level)) in self._open

    def feed(
        self, line: LogLine, number: int, seconds: float | None, matched: Matched
    ) -> list[Closed]:
        """Take in one line with the signatures it matched; returns the traces that it ends."""
        self._count += 1
        key = (line.process, bool(line.level))
        closed: list[Closed] = []
        if HEADER in line.text[: len(HEADER) + 40]:
            self._begin(key, line, number, seconds, closed)
        elif (opened := self._without_header(line, number, seconds, matched)) is not None:
            self._end(key, closed)
            self._open[key] = opened
            self._make_room(closed)
        elif key in self._open:
            self._go_on(key, line, matched, closed)
        if line.text.startswith(IGNORED):
            self._ignored_next = {key}
        if self._open:
            self._drop_stale(closed)
        return closed

    def takes_frame(self, line: LogLine) -> bool:
        """Take in a line if it is surely within the frames of a trace; returns whether.

        Such a line quotes source code, so no signature must look at it.
        """
        if not line.text[:1].isspace():
            return False
        trace = self._open.get((line.process, bool(line.level)))
        if trace is None:
            return self._spent(line)  # of a trace that was not taken in
        text = line.text.removeprefix(trace.margin)
        if trace.kind or not text[:1].isspace() or text.lstrip().startswith(HEADER):
            return False
        self._count += 1
        trace.touched = self._count
        _add_frame(trace, text)
        return True

    def within_quiet(self, line: LogLine) -> bool:
        """Whether a line belongs to a trace after which the process went on."""
        trace = self._open.get((line.process, bool(line.level)))
        return trace is not None and trace.quiet and not _ends(trace, line, alone=True)

    def unfinished(self) -> list[Closed]:
        """The traces still open, as they are now; changes nothing."""
        return [_close(trace) for trace in self._open.values() if not trace.quiet]

    def _begin(
        self,
        key: tuple[str, bool],
        line: LogLine,
        number: int,
        seconds: float | None,
        closed: list[Closed],
    ) -> None:
        self._end(key, closed)
        ignored = key in self._ignored_next
        self._ignored_next.discard(key)
        if not self._may_open(line):
            return
        before = line.text.partition(HEADER)[0]
        self._open[key] = _Open(
            line,
            number,
            seconds,
            self._count,
            margin="" if before.strip() else before,
            quiet=ignored or line.level in QUIET_LEVELS or before == GROUP,
        )
        self._make_room(closed)

    def _make_room(self, closed: list[Closed]) -> None:
        if len(self._open) > MOST_OPEN:
            self._end(next(iter(self._open)), closed)

    def _may_open(self, line: LogLine) -> bool:
        if self._spent(line):
            return False
        self._left -= 1
        if line.process.startswith("APIServer"):
            self._requests_left -= 1
        return True

    def _spent(self, line: LogLine) -> bool:
        if line.process.startswith("APIServer"):
            return self._requests_left <= 0
        return self._left <= 0

    def _without_header(
        self, line: LogLine, number: int, seconds: float | None, matched: Matched
    ) -> _Open | None:
        """What a line begins that needs no header: a death in native code, or an exception that is
        only said; None if the line begins neither."""
        if line.level in QUIET_LEVELS or matched.alone:
            return None
        if self._serving and line.process.startswith("APIServer"):
            return None  # the text may be a client's
        key = (line.process, bool(line.level))
        before = self._open.get(key)
        weight = weight_of(line.text)
        if weight is not None and not (before and before.quiet and not before.kind):
            kind, _, message = line.text.partition(": ")
        elif before is None and (found := _SAID.fullmatch(line.text.rstrip())):
            kind, message = found["kind"], found["message"]
        else:
            return None
        if not self._may_open(line):
            return None
        opened = _Open(line, number, seconds, self._count, kind=printable(kind), weight=weight)
        opened.said = weight is None
        opened.message.append(printable(message))
        opened.signatures.extend(matched.ids)
        return opened

    def _go_on(
        self, key: tuple[str, bool], line: LogLine, matched: Matched, closed: list[Closed]
    ) -> None:
        trace = self._open[key]
        text = line.text.removeprefix(trace.margin)
        if trace.weight is not None and _within_crash(trace, text):
            trace.touched = self._count
        elif trace.kind:
            if _ends(trace, line, alone=matched.alone):
                self._end(key, closed)
            else:
                trace.message.append(printable(text.strip()))
                trace.signatures.extend(matched.ids)
                trace.touched = self._count
                if trace.weight is not None and WHAT in text:
                    trace.weight = Weight.REASON
        elif found := _EXCEPTION.fullmatch(text.rstrip()):
            trace.kind = found[1]
            trace.message.append(printable((found[2] or "").strip()))
            trace.signatures.extend(matched.ids)
            trace.touched = self._count

    def _drop_stale(self, closed: list[Closed]) -> None:
        for key, trace in list(self._open.items()):
            patience = PATIENCE_SAID if trace.said else PATIENCE
            if self._count - trace.touched > patience:
                self._end(key, closed)

    def _end(self, key: tuple[str, bool], closed: list[Closed]) -> None:
        trace = self._open.pop(key, None)
        if trace is not None and not trace.quiet:
            closed.append(_close(trace))


def _ends(trace: _Open, line: LogLine, *, alone: bool) -> bool:
    """Whether a line stands behind the end of the trace: `alone` is one that says something else.

    A message goes on in indented lines, and in others that the same place in the code wrote.
    """
    if not trace.kind:
        return False
    text = line.text.removeprefix(trace.margin)
    if len(trace.message) >= MESSAGE_LINES:
        return True
    if text[:1].isspace():
        return trace.weight is not None and bool(trace.frames)
    if alone or trace.quiet or (trace.frames and trace.weight is not None):
        return True
    same = (line.level, line.source) == (trace.header.level, trace.header.source)
    if not (same and text.strip()) or _OTHER.match(text):
        return True
    # Of lines that name no process, the next one may be anybody's.
    begun = trace.message[-1]
    return not (line.process or not begun or begun.endswith(":") or _GOES_ON.match(text))


def _within_crash(trace: _Open, text: str) -> bool:
    """Take in a line of what a crash handler prints: threads, their frames, empty lines."""
    if not text.strip():
        return True
    if thread := THREAD.match(text):
        trace.collects = thread[1] != "Thread"
        if trace.collects:
            trace.frames.clear()
        return True
    if found := _FRAME.match(text):
        if trace.collects and len(trace.frames) < LAST_FRAMES:
            function = printable((found[3] or "").strip())
            # The innermost comes first, where a traceback has it last.
            trace.frames.appendleft(Frame(printable(found[1]), int(found[2]), function))
        return True
    return False


def _add_frame(trace: _Open, text: str) -> None:
    if found := _FRAME.match(text):
        function = printable((found[3] or "").strip())
        trace.frames.append(Frame(printable(found[1]), int(found[2]), function))
        return
    code = text.strip()
    if trace.frames and code and not trace.frames[-1].code and code.strip("^~ "):
        last = trace.frames[-1]
        trace.frames[-1] = Frame(last.file, last.line, last.function, printable(code[:200]))


def _close(trace: _Open) -> Closed:
    message = " ".join(part for part in trace.message if part)
    seen = ExceptionSeen(
        kind=trace.kind,
        message=message[:LONGEST_TEXT],
        process=trace.header.process,
        rank=trace.header.rank,
        line_number=trace.line_number,
        seconds=trace.seconds,
        frames=tuple(trace.frames),
        cut_off=not trace.kind,
        weight=trace.weight,
        said=trace.said,
    )
    return Closed(seen, tuple(trace.signatures))
