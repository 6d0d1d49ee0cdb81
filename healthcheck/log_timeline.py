"""How far a start has come: listen, config, weights, draft, compile, capture, ready.

The marks are lines of vLLM 0.27.1 and of AITER; a stage that a profile leaves out has no row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from healthcheck.log_lines import LogLine, printable

NEW_START = "non-default args: "  # the API process prints it once, before it binds its port
STAGES = ("listen", "config", "weights", "draft", "compile", "capture", "ready")


@dataclass(frozen=True)
class Stage:
    """One stage: seconds since the first line at which it began and ended, percent done."""

    name: str
    started_s: float | None
    line_number: int
    finished: bool = False
    finished_s: float | None = None
    progress_percent: int | None = None
    detail: str = ""


@dataclass(frozen=True)
class _Mark:
    stage: str
    text: str
    ends: bool = False
    percent: re.Pattern[str] | None = None


_MARKS = (
    _Mark("listen", NEW_START),
    _Mark("config", "Resolved architecture: "),
    _Mark("config", "Initializing a V1 LLM engine", ends=True),
    _Mark("weights", "Loading model from scratch..."),
    _Mark("weights", "Starting to load model "),
    _Mark(
        "weights", "checkpoint shards:", percent=re.compile(r"checkpoint shards: {0,4}(\d{1,3})%")
    ),
    _Mark("weights", "Loading weights took ", ends=True),
    _Mark("draft", "Loading drafter model..."),
    _Mark("compile", "[aiter] start build"),
    _Mark("compile", "[aiter] finish build", ends=True),
    _Mark("compile", "Warming up model for the compilation"),
    _Mark("compile", "Warming up done.", ends=True),
    _Mark("compile", "Compiling a graph for "),
    _Mark("compile", "torch.compile took ", ends=True),
    _Mark("capture", "Capturing ", percent=re.compile(r"Capturing [^:]{1,80}: {0,4}(\d{1,3})%")),
    _Mark("capture", "Graph capturing finished", ends=True),
)
_READY = "Application startup complete"
_SERVING = ("Starting vLLM server on ", "Available routes are")

START_LITERALS = (*(mark.text for mark in _MARKS), _READY, *_SERVING)


class Timeline:
    """Takes in lines and keeps one Stage for each stage that was seen."""

    def __init__(self) -> None:
        self._stages: dict[str, Stage] = {}
        self._loads: dict[str, int] = {}  # loads of weights that a process has finished
        self._serving_seen = 0

    @property
    def ready(self) -> bool:
        """Whether the server has said that it serves."""
        return "ready" in self._stages

    def stages(self) -> tuple[Stage, ...]:
        """The stages seen so far, in their order."""
        return tuple(self._stages[name] for name in STAGES if name in self._stages)

    def observe(self, line: LogLine, number: int, seconds: float | None) -> bool:
        """Take in one line; returns whether it shows that the start has come further."""
        if self.ready:
            return False
        text = line.text
        for mark in _MARKS:
            if mark.text in text:
                return self._mark(mark, line, number, seconds)
        if self._says_ready(text):
            self._begin("ready", number, seconds)
            self._finish("ready", seconds, text)
            return True
        return False

    def _says_ready(self, text: str) -> bool:
        if self._serving_seen < len(_SERVING) and _SERVING[self._serving_seen] in text:
            self._serving_seen += 1
        return _READY in text or self._serving_seen == len(_SERVING)

    def _mark(self, mark: _Mark, line: LogLine, number: int, seconds: float | None) -> bool:
        percent = None
        if mark.percent:
            found = mark.percent.search(line.text)
            if not found:
                return False
            percent = min(int(found[1]), 100)
        name = mark.stage
        if name == "weights" and self._loads.get(line.process):
            name = "draft"  # the same process loads a second time
        before = self._stages.get(name)
        self._begin(name, number, seconds)
        if percent is not None:
            self._stages[name] = replace(self._stages[name], progress_percent=percent)
        if mark.ends:
            self._finish(name, seconds, line.text)
            if mark.stage == "weights" and len(self._loads) < 4096:
                self._loads[line.process] = self._loads.get(line.process, 0) + 1
        return before != self._stages[name]

    def _begin(self, name: str, number: int, seconds: float | None) -> None:
        if name in self._stages:
            return
        for earlier in STAGES[: STAGES.index(name)]:
            if earlier in self._stages and not self._stages[earlier].finished:
                self._finish(earlier, seconds, "")
        self._stages[name] = Stage(name, seconds, number)

    def _finish(self, name: str, seconds: float | None, detail: str) -> None:
        stage = self._stages[name]
        self._stages[name] = replace(
            stage,
            finished=True,
            finished_s=seconds,
            detail=printable((detail.strip() or stage.detail)[:200]),
        )
