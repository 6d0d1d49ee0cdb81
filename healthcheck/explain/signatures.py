"""The known lines of a vLLM log: what each means, whether it is a cause, and what to do.

All of it is data in signatures.tsv, whose first lines give its rules. The tests hold its regular
expressions to a dialect without unbounded repetition, so that the work a hostile line can cause has
an upper bound that is known before any line is read.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

COLUMNS = ("id", "phase", "class", "budget_s", "regex", "remedy", "source")
SHIPPED = Path(__file__).with_name("signatures.tsv")


class Severity(StrEnum):
    """What a matching line says about the start or the running server."""

    FATAL = "fatal"  # a cause
    RETRY = "retry"  # a cause that may be gone at the next try
    TIMEOUT = "timeout"  # something took too long; a wait that came before says what
    EXTERNAL = "external"  # somebody stopped the server
    WRAPPER = "wrapper"  # a consequence: the cause is on another line
    TRANSIENT = "transient"  # ordinary, unless it lasts longer than its budget
    WARN = "warn"  # worth saying, stops nothing
    BENIGN = "benign"  # looks bad, means nothing


class Phase(StrEnum):
    """When a line is seen."""

    CREATE = "create"  # before the container runs
    CONFIG = "config"  # before weights are read
    START = "start"
    SERVE = "serve"
    ANY = "any"


@dataclass(frozen=True)
class Signature:
    """One row: id, phase, class, the seconds a transient line may last, regex, remedy, source.

    `literals` are derived from the regex: every matching line holds at least one of them.
    """

    id: str
    phase: Phase
    severity: Severity
    budget_s: float | None
    pattern: re.Pattern[str]
    remedy: str
    source: str
    literals: tuple[str, ...]


@functools.cache  # each start of a server is explained anew, from the same file
def load() -> tuple[Signature, ...]:
    """All signatures in the order of the shipped file, which the tests hold to its rules."""
    rows = csv.reader(
        (line for line in SHIPPED.read_text("utf-8").splitlines() if line and line[0] != "#"),
        delimiter="\t",
        quoting=csv.QUOTE_NONE,
    )
    assert tuple(next(rows)) == COLUMNS
    return tuple(_signature(*row) for row in rows)


def _signature(
    name: str, phase: str, severity: str, budget: str, regex: str, remedy: str, source: str
) -> Signature:
    budget_s = None if budget == "-" else float(budget)
    kind = Severity(severity)
    pattern, texts = re.compile(regex), fixed_texts(regex)
    return Signature(name, Phase(phase), kind, budget_s, pattern, remedy, source, texts)


_TOKEN = re.compile(
    r"""(?P<escape>\\.)
      | (?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])
      | (?P<open>\((?:\?(?:P<\w+>|:|=|!))?)
      | (?P<close>\))
      | (?P<bar>\|)
      | (?P<repeat>\{(?:\d+(?:,\d*)?|,\d*)\}|[*+?])
      | (?P<wild>[.^$])
      | (?P<char>.)""",
    re.VERBOSE | re.DOTALL,
)


def tokens(regex: str) -> Iterator[tuple[str, str]]:
    """The parts of a regular expression, each with its kind: the name of its group above."""
    for match in _TOKEN.finditer(regex):
        kind, text = str(match.lastgroup), match.group()
        if kind == "escape":
            special = text[1].isalnum()
            yield ("wild", text) if special else ("char", text[1])
        else:
            yield kind, text


def fixed_texts(regex: str) -> tuple[str, ...]:
    """The longest fixed text of each top-level alternative of `regex`."""
    longest = [""]
    run, depth = "", 0
    for kind, text in [*tokens(regex), ("wild", "")]:
        if kind == "char" and depth == 0:
            run += text
            continue
        if kind == "repeat":
            run = run[:-1]  # what is repeated may be absent
        longest[-1] = max(longest[-1], run, key=len)
        run = ""
        depth += {"open": 1, "close": -1}.get(kind, 0)
        if kind == "bar" and depth == 0:
            longest.append("")
    return tuple(dict.fromkeys(longest))
