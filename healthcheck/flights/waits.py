"""What each process of a flight waits for: rules over the names in its stack, as data.

The rules are waits.tsv. They read the main thread, whose loop the engine's steps are.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from healthcheck.flights.model import Frame, Stack

COLUMNS = ("id", "regex", "words", "example", "source")
SHIPPED = Path(__file__).with_name("waits.tsv")


@dataclass(frozen=True)
class Rule:
    """One row: its id, what it is found by, what it says, and frames that it is found in."""

    id: str
    pattern: re.Pattern[str]
    words: str
    example: tuple[str, ...]


@functools.cache
def rules() -> tuple[Rule, ...]:
    """The rows of waits.tsv in their order. Raises ValueError for another header or form."""
    rows = [
        line.split("\t")
        for line in SHIPPED.read_text("utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    if tuple(rows[0]) != COLUMNS:
        raise ValueError(f"{SHIPPED.name}: its header is {rows[0]}; it must be {COLUMNS}")
    return tuple(
        Rule(name, re.compile(regex, re.MULTILINE), words, tuple(example.split("|")))
        for name, regex, words, example, _ in rows[1:]
    )


def rule_of(lines: Iterable[str]) -> tuple[Rule, int] | None:
    """The rule that a stack's lines meet, and the number of the line where it begins."""
    text = "".join(f"{line}\n" for line in lines)
    for rule in rules():
        found = rule.pattern.search(text)
        if found is not None:
            return rule, text.count("\n", 0, found.start())
    return None


def waits_for(stack: Stack) -> str:
    """What a process waits for, in a line that begins with its name."""
    who = f"{stack.name} ({stack.pid})"
    if stack.state in "Tt":
        stopped = "is stopped by a signal"
        return f"{who} {stopped}{_there(stack)}"
    if not stack.threads or not stack.threads[0].frames:
        kernel = f", in the kernel at {stack.kernel}" if stack.kernel else ""
        return (
            f"{who} has no stack: {stack.trouble or 'none was found'}; state {stack.state}{kernel}"
        )
    frames = stack.threads[0].frames
    lines = [f"{stack.kernel} kernel"] if stack.kernel else []
    met = rule_of([*lines, *(f"{frame.function} {frame.file}" for frame in frames)])
    disk = "is held by the kernel (state D)" if stack.state == "D" else ""
    if met is None:
        return f"{who} {disk or 'is at work, or waits for what no rule knows'}{_place(frames)}"
    rule, number = met
    return f"{who} {disk or rule.words}{_place(frames[max(number - len(lines), 0) :])}"


def _there(stack: Stack) -> str:
    return _place(stack.threads[0].frames) if stack.threads else ""


def _place(frames: Iterable[Frame]) -> str:
    """The innermost of these frames that is Python's."""
    python = next((frame for frame in frames if frame.line and frame.file.endswith(".py")), None)
    return "" if python is None else f", in {python.place}"
