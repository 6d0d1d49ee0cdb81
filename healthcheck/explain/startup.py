"""How far a start has come: listen, config, weights, draft, compile, capture, ready.

The marks are lines of vLLM 0.27.1 and of AITER; a stage that a profile leaves out has no row.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from healthcheck.explain.lines import LogLine, printable

NEW_START = "non-default args: "  # the API process prints it once, before it binds its port
STAGES = ("listen", "config", "weights", "draft", "compile", "capture", "ready")

LONGEST_DETAIL = 200  # characters
MOST_PROCESSES = 4096  # whose loads of weights are counted


@dataclass(frozen=True)
class Stage:
    """One stage of a start, told by the log's own stamps, or without times where it has none.

    `began_s` counts from the first line of the start. `seconds` is how long the stage took, or has
    taken so far if it is not `done`; a stage that was taken up again counts its parts. Stages of
    different ranks may overlap: the first line of any rank begins a stage. `progress_percent` is
    that of the first process that draws a bar. `detail` is the line that told last of the stage.
    """

    name: str
    began_s: float | None
    seconds: float | None
    done: bool
    progress_percent: int | None = None
    detail: str = ""


@dataclass(frozen=True)
class Startup:
    """The last start in a log: its stages in their order, and whether it came through.

    `seconds` is what it took to `ready`, or has taken so far.
    """

    stages: tuple[Stage, ...]
    ready: bool
    seconds: float | None

    @property
    def reached(self) -> str:
        """The last stage in words, with its percent where the log gives it."""
        last = self.stages[-1]
        known = last.progress_percent is not None and not last.done
        return f"{last.name} ({last.progress_percent} %)" if known else last.name

    def as_dict(self) -> dict[str, object]:
        """The start as plain values that json can write."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class _Mark:
    """A text that tells of a stage, and what of its line is the detail: all, if not said.

    `took` finds the seconds in a line that comes only after the work that it tells of.
    """

    stage: str
    text: str
    ends: bool = False
    percent: re.Pattern[str] | None = None
    took: re.Pattern[str] | None = None
    detail: re.Pattern[str] | None = None


_TOOK = re.compile(r"(?:took|takes|finished in) (\d{1,7}(?:\.\d{1,9})?) s")
# The arguments may hold an API key: only the port is shown.
_PORT = re.compile(r"'port': \d{1,5}")
_ENGINE = re.compile(r"Initializing a V1 LLM engine \([^)]{1,80}\)")

_MARKS = (
    _Mark("listen", NEW_START, detail=_PORT),
    _Mark("config", "Resolved architecture: "),
    _Mark("config", "Initializing a V1 LLM engine", ends=True, detail=_ENGINE),
    _Mark("weights", "Loading model from scratch..."),
    _Mark("weights", "Starting to load model "),
    _Mark(
        "weights", "checkpoint shards:", percent=re.compile(r"checkpoint shards: {0,4}(\d{1,3})%")
    ),
    _Mark("weights", "Loading weights took ", ends=True, took=_TOOK),
    _Mark("draft", "Loading drafter model..."),
    # AITER names its process between the two from 0.1.14 on.
    _Mark("compile", "] start build ["),
    _Mark("compile", "] finish build ", ends=True),
    _Mark("compile", "] waiting for baton release at "),
    _Mark("compile", "Warming up done.", ends=True),
    _Mark("compile", "Warming up "),
    _Mark("compile", "Compiling a graph for ", took=_TOOK),
    _Mark("compile", "torch.compile took ", ends=True, took=_TOOK),
    _Mark("capture", "Capturing ", percent=re.compile(r"Capturing [^:]{1,80}: {0,4}(\d{1,3})%")),
    _Mark("capture", "Graph capturing finished", ends=True, took=_TOOK),
)
_READY = "Application startup complete"
_SERVING = ("Starting vLLM server on ", "Available routes are")

START_LITERALS = (*(mark.text for mark in _MARKS), _READY, *_SERVING)


@dataclass
class _Row:
    """A stage as it is taken in; times are those of the log's clock."""

    name: str
    began_s: float | None
    open_since_s: float | None
    open: bool = True
    seconds: float = 0.0  # of the parts that have ended
    ended_s: float | None = None
    percent: int | None = None
    draws: str | None = None  # the process whose bar is shown
    detail: str = ""

    def end(self, since: float | None, at: float | None) -> None:
        """It ends at `at`; if it had ended already, a later rank was at it from `since` on."""
        begun = self.open_since_s if self.open else _later(since, self.ended_s)
        self.seconds += _between(begun, at)
        self.open, self.ended_s = False, at

    def again(self, since: float | None) -> None:
        """It is taken up again, since a while if that is told afterwards."""
        self.open, self.open_since_s = True, _later(since, self.ended_s)

    def stage(self, origin_s: float, now: float | None) -> Stage:
        """What there is to say of it at `now`."""
        timed = self.began_s is not None
        so_far = self.seconds + (_between(self.open_since_s, now) if self.open else 0.0)
        return Stage(
            name=self.name,
            began_s=None if self.began_s is None else max(self.began_s - origin_s, 0.0),
            seconds=so_far if timed else None,
            done=not self.open,
            progress_percent=self.percent,
            detail=self.detail,
        )


class Timeline:
    """Takes in the lines of one start. `origin_s` is when its first line came, on their clock."""

    def __init__(self, origin_s: float | None = None) -> None:
        self._origin_s = origin_s or 0.0
        self._rows: dict[str, _Row] = {}
        self._loads: dict[str, int] = {}  # loads of weights that a process has finished
        self._serving_seen = 0
        self._address = ""  # the line that tells where it listens

    @property
    def begun(self) -> bool:
        """Whether any stage was seen."""
        return bool(self._rows)

    @property
    def ready(self) -> bool:
        """Whether the server has said that it serves."""
        return "ready" in self._rows

    def startup(self, now: float | None) -> Startup | None:
        """The start as it stands at `now`, or None if no stage was seen."""
        rows = [self._rows[name] for name in STAGES if name in self._rows]
        if not rows:
            return None
        until = rows[-1].began_s if self.ready else now
        return Startup(
            stages=tuple(row.stage(self._origin_s, now) for row in rows),
            ready=self.ready,
            seconds=None if until is None else max(until - self._origin_s, 0.0),
        )

    def observe(self, line: LogLine, seconds: float | None) -> bool:
        """Take in one line; returns whether it shows that the start has come further."""
        if self.ready:
            return False
        text = line.text
        for mark in _MARKS:
            if mark.text in text:
                return self._mark(mark, line, seconds)
        if self._says_ready(text):
            self._begin("ready", seconds)
            self._rows["ready"].detail = _shown(self._address or text)
            self._rows["ready"].end(seconds, seconds)
            return True
        return False

    def glance(self, line: LogLine, seconds: float | None) -> None:
        """Take in what a progress bar has drawn of a line that has not ended yet."""
        for mark in _MARKS:
            if mark.percent and mark.text in line.text and not self.ready:
                self._mark(mark, line, seconds)

    def _says_ready(self, text: str) -> bool:
        if self._serving_seen < len(_SERVING) and _SERVING[self._serving_seen] in text:
            self._address = self._address or text
            self._serving_seen += 1
        return _READY in text or self._serving_seen == len(_SERVING)

    def _mark(self, mark: _Mark, line: LogLine, seconds: float | None) -> bool:
        drawn = mark.percent.search(line.text) if mark.percent else None
        if mark.percent and not drawn:
            return False
        name = mark.stage
        if name == "weights" and self._loads.get(line.process):
            name = "draft"  # the same process loads a second time
        before = dataclasses.replace(self._rows[name]) if name in self._rows else None
        told = mark.took.search(line.text) if mark.took else None
        since = seconds - float(told[1]) if told and seconds is not None else seconds
        self._begin(name, since, reopens=not mark.ends)
        row = self._rows[name]
        if drawn and row.draws in (None, line.process):
            row.draws, row.percent = line.process, min(int(drawn[1]), 100)
        if mark.ends:
            row.end(since if told else None, seconds)
            self._count_load(mark, line)
        if not drawn or row.draws == line.process:
            shown = mark.detail.search(line.text) if mark.detail else None
            row.detail = _shown(line.text if not mark.detail else shown[0] if shown else "")
        return before != row

    def _count_load(self, mark: _Mark, line: LogLine) -> None:
        if mark.stage == "weights" and len(self._loads) < MOST_PROCESSES:
            self._loads[line.process] = self._loads.get(line.process, 0) + 1

    def _begin(self, name: str, since: float | None, *, reopens: bool = False) -> None:
        """A stage begins, at the earliest when the last one did; or it is taken up again, unless
        the start is past it."""
        place = STAGES.index(name)
        row = self._rows.get(name)
        if row is None:
            at = since
            for other in self._rows.values():
                at = _later(at, other.began_s)
            for earlier in STAGES[:place]:
                if earlier in self._rows and self._rows[earlier].open:
                    self._rows[earlier].end(None, at)
            self._rows[name] = _Row(name, at, at)
        elif reopens and not row.open and not any(s in self._rows for s in STAGES[place + 1 :]):
            row.again(since)


def _later(one: float | None, other: float | None) -> float | None:
    """The later of two times, of which none, one or both are known."""
    return max((time for time in (one, other) if time is not None), default=None)


def _between(since: float | None, until: float | None) -> float:
    return 0.0 if since is None or until is None else max(until - since, 0.0)


def _shown(text: str) -> str:
    return printable(text.strip()[:LONGEST_DETAIL])
