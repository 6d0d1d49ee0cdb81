"""What a person sees: a status line while it runs, rows as they come, the table at the end."""

from __future__ import annotations

import os
import shutil
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, TextIO

from healthcheck.judge import Outcome
from healthcheck.judge.acceptance import Acceptance
from healthcheck.smoke.results import Check, Level, Report
from healthcheck.words import clean

MARKS = {Outcome.GOOD: "good", Outcome.BAD: "BAD", Outcome.UNKNOWN: "?"}
VERDICTS = ("all held", "something is BAD", "could not tell")
_COLOURS = {Outcome.GOOD: "32", Outcome.BAD: "31;1", Outcome.UNKNOWN: "33"}
_BAR = 20
_TICK_S = 0.5
_CLEAR = "\r\x1b[K"


def is_live(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a line can be rewritten there: a terminal, and no CI that keeps every byte."""
    return stream.isatty() and not environ.get("CI") and environ.get("TERM") != "dumb"


def has_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether to colour: on a terminal, unless NO_COLOR is set (no-color.org)."""
    return is_live(stream, environ) and not environ.get("NO_COLOR")


def line(check: Check) -> str:
    """A row as it is told when it comes."""
    return clean(f"  {MARKS[check.outcome]:4}  {check.name}: {check.evidence}")


def bar(done: int, total: int, name: str, seconds: float, width: int) -> str:
    """The status line, cut to the width of the terminal."""
    filled = _BAR * done // max(total, 1)
    drawn = "#" * filled + "-" * (_BAR - filled)
    return f"[{drawn}] {done + 1}/{total} {name} {seconds:.0f} s"[: max(width - 1, 10)]


class Console:
    """Tells lines; on a terminal a status line stays below them and is rewritten twice a second."""

    def __init__(
        self, say: Callable[[str], None], stream: TextIO, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._say = say
        self._stream = stream
        self._live = is_live(stream, environ)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._stage = (0, 0, "", 0.0)
        self._ticker = threading.Thread(target=self._tick, name="status line", daemon=True)

    def __enter__(self) -> Console:
        if self._live:
            self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._over.set()
        if self._live:
            self._ticker.join()
            self._stream.write(_CLEAR)
            self._stream.flush()

    def say(self, text: str) -> None:
        """A line above the status line."""
        with self._lock:
            if self._live:
                self._stream.write(_CLEAR)
                self._stream.flush()
            self._say(text)
            self._draw()

    def stage(self, done: int, total: int, name: str) -> None:
        """What is being done from now on."""
        with self._lock:
            self._stage = (done, total, name, time.monotonic())
            self._draw()

    def _tick(self) -> None:
        while not self._over.wait(_TICK_S):
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        done, total, name, began = self._stage
        if not self._live or not total:
            return
        columns = shutil.get_terminal_size((80, 24)).columns
        text = bar(done, total, name, time.monotonic() - began, columns)
        self._stream.write(_CLEAR + text)
        self._stream.flush()


def table(report: Report, width: int | None = None, colour: bool = False) -> str:
    """The report for a person: every check with its evidence, then figures and timings."""
    width = width or shutil.get_terminal_size((100, 24)).columns
    told = [check.name for check in report.checks] + [item.name for item in report.left_out]
    names = max((len(name) for name in told), default=5)
    lines = [clean(f"{report.target}  profile {report.profile} ({report.evidence})"), ""]
    for check in report.checks:
        text = check.evidence
        if check.outcome is not Outcome.GOOD:
            text += f" [{check.code}]" if check.code else ""
            text += f"; {check.remedy}" if check.remedy else ""
        took = f"  {check.elapsed_s:.1f} s" if check.elapsed_s >= 0.05 else ""
        mark = _painted(f"{MARKS[check.outcome]:6}", check.outcome, colour)
        lines += _wrapped(mark, check.name, text + took, names, width)
    for item in report.left_out:
        lines += _wrapped("-     ", item.name, f"not judged: {item.why}", names, width)
    if report.acceptance is not None:
        lines += ["", *_acceptance_lines(report.acceptance, report.reference)]
    if report.levels:
        lines += ["", *_level_lines(report.levels)]
    if report.cause is not None:
        lines += ["", *(clean(line) for line in _cause_lines(report.cause))]
    timings = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report.timings_s.items())
    outcome = (Outcome.GOOD, Outcome.BAD, Outcome.UNKNOWN)[report.exit_code]
    verdict = _painted(VERDICTS[report.exit_code], outcome, colour)
    return "\n".join([*lines, "", f"timings: {timings}", f"verdict: {verdict}"])


def _wrapped(mark: str, name: str, text: str, names: int, width: int) -> list[str]:
    indent = " " * (6 + names + 2)
    first, *rest = textwrap.wrap(clean(text), max(20, width - len(indent))) or [""]
    return [f"{mark}{clean(name):{names}}  {first}", *(indent + more for more in rest)]


def _painted(text: str, outcome: Outcome, colour: bool) -> str:
    return f"\x1b[{_COLOURS[outcome]}m{text}\x1b[0m" if colour else text


def _acceptance_lines(seen: Acceptance, reference: Mapping[str, object]) -> Iterable[str]:
    source = str(reference.get("source", "reference"))
    rows = [
        ("acceptance rate", f"{seen.rate:.1%}", "", reference.get("acceptance_rate")),
        ("acceptance length", f"{seen.length:.2f}", "", reference.get("acceptance_length")),
    ]
    for i, (rate, (low, high)) in enumerate(zip(seen.per_position, seen.intervals, strict=True)):
        published = reference.get(f"acceptance_position_{i}")
        rows.append((f"accepted at {i}", f"{rate:.1%}", f"{low:.1%} to {high:.1%}", published))
    yield f"{'speculation':20}{'here':>8}  {'interval':>16}  {source:>14}"
    for name, here, interval, published in rows:
        if isinstance(published, float):
            theirs = f"{published:.2f}" if published > 1 else f"{published:.1%}"
        else:
            theirs = "-"
        yield f"{name:20}{here:>8}  {interval:>16}  {theirs:>14}"


def _level_lines(levels: Iterable[Level]) -> Iterator[str]:
    yield (
        f"{'concurrency':13}{'answered':>9}{'tokens/s':>10}"
        f"{'first piece p50/p99':>22}{'between p50/p99':>18}"
    )
    for level in levels:
        answered = f"{level.requests - level.failed}/{level.requests}"
        first = f"{1000 * level.first_s.p50:.0f}/{1000 * level.first_s.p99:.0f} ms"
        gap = f"{1000 * level.gap_s.p50:.0f}/{1000 * level.gap_s.p99:.0f} ms"
        rate = f"{level.tokens_per_s:.1f}"
        yield f"{level.concurrency:<13}{answered:>9}{rate:>10}{first:>22}{gap:>18}"


def _cause_lines(cause: Mapping[str, Any]) -> Iterator[str]:
    yield f"cause: {cause.get('id')} in {cause.get('process') or 'the log'}"
    for evidence in cause.get("evidence", ()):
        yield f"  line {evidence['line_number']}: {evidence['text']}"
    for key in ("remedy", "source"):
        if cause.get(key):
            yield f"  {key}: {cause[key]}"
