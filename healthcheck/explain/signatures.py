"""The known lines of a vLLM log: what each means, whether it is a cause, and what to do.

All of it is data in signatures.tsv; this module reads that file and refuses a bad one. Regular
expressions are held to a dialect without unbounded repetition, so that the work a hostile line can
cause has an upper bound that is known before any line is read.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from string import Formatter

COLUMNS = ("id", "phase", "class", "budget_s", "regex", "remedy", "source")
SHIPPED = Path(__file__).with_name("signatures.tsv")

SHORTEST_LITERAL = 5  # shorter fixed text is found everywhere and would filter nothing
LONGEST_REPEAT = 400  # {m,n}: n at most this; evidence is cut to about the same length
MOST_PATHS = 20_000  # ways one start position may be tried; about 1 ms of work at worst


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


class SignatureError(ValueError):
    """signatures.tsv is not usable; the message is one line with file, line, value and fix."""


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


def load(path: Path | None = None) -> tuple[Signature, ...]:
    """All signatures in file order, from `path` or the shipped file.

    Raises SignatureError for a file that cannot be read or holds a row that is not sound.
    """
    path = path or SHIPPED
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise SignatureError(f"{path.name}: cannot be read: {e}") from e
    return _known(path.name, text)


def _parsed(name: str, text: str) -> tuple[Signature, ...]:
    rows = [
        (number, line.split("\t"))
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.startswith("#")
    ]
    if not rows or tuple(rows[0][1]) != COLUMNS:
        seen = " ".join(rows[0][1]) if rows else "nothing"
        raise SignatureError(f"{name}: the header is {seen!r}; it must be {COLUMNS}")
    signatures: dict[str, Signature] = {}
    for number, cells in rows[1:]:
        try:
            signature = _signature(cells)
        except SignatureError as e:
            raise SignatureError(f"{name} line {number}: {e}") from e
        if signature.id in signatures:
            raise SignatureError(f"{name} line {number}: id {signature.id!r} is there twice")
        signatures[signature.id] = signature
    return tuple(signatures.values())


# Each start of a server is explained anew, from the same file.
_known = functools.cache(_parsed)


def _signature(cells: list[str]) -> Signature:
    if len(cells) != len(COLUMNS):
        raise SignatureError(
            f"{len(cells)} columns; it must be {len(COLUMNS)}, parted by single tabs"
        )
    name, phase, severity, budget, regex, remedy, source = cells
    if not re.fullmatch(r"[a-z]\w*(\.\w+)+", name):
        raise SignatureError(f"id {name!r}; it must look like area.what")
    if phase not in tuple(Phase):
        raise SignatureError(f"{name}: phase {phase!r}; it must be one of {', '.join(Phase)}")
    if severity not in tuple(Severity):
        raise SignatureError(f"{name}: class {severity!r}; it must be one of {', '.join(Severity)}")
    if not remedy.strip() or not source.strip():
        raise SignatureError(f"{name}: a remedy and a source are needed")
    try:
        pattern = re.compile(regex)
    except re.error as e:
        raise SignatureError(f"{name}: regex {regex!r} does not compile: {e}") from e
    try:
        literals = fixed_texts(regex)
        _check_remedy(remedy, pattern)
        budget_s = _budget(budget, Severity(severity))
    except SignatureError as e:
        raise SignatureError(f"{name}: {e}") from e
    return Signature(
        name, Phase(phase), Severity(severity), budget_s, pattern, remedy, source, literals
    )


def _budget(cell: str, severity: Severity) -> float | None:
    if severity is not Severity.TRANSIENT:
        if cell != "-":
            raise SignatureError(f"budget_s {cell!r}; only a transient line has one, write -")
        return None
    if not re.fullmatch(r"[1-9]\d{0,5}", cell):
        raise SignatureError(f"budget_s {cell!r}; a transient line needs whole seconds")
    return float(cell)


def _check_remedy(remedy: str, pattern: re.Pattern[str]) -> None:
    try:
        fields = [f for f in Formatter().parse(remedy) if f[1] is not None]
    except ValueError as e:
        raise SignatureError(f"remedy {remedy!r} is no template: {e}") from e
    for _, field, spec, conversion in fields:
        if field not in pattern.groupindex or spec or conversion:
            raise SignatureError(
                f"remedy names {{{field}}}; it may name these groups of the regex: "
                f"{', '.join(pattern.groupindex) or 'none'}"
            )


# --- the dialect

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


def _tokens(regex: str) -> Iterator[tuple[str, str]]:
    for match in _TOKEN.finditer(regex):
        kind, text = str(match.lastgroup), match.group()
        if kind == "escape":
            special = text[1].isalnum()
            yield ("wild", text) if special else ("char", text[1])
        else:
            yield kind, text


def fixed_texts(regex: str) -> tuple[str, ...]:
    """The longest fixed text of each top-level alternative of `regex`.

    Raises SignatureError where the regex leaves the dialect: a repetition without an upper bound,
    a repeated group, more paths than MOST_PATHS, or an alternative without fixed text.
    """
    tokens = list(_tokens(regex))
    _check_repeats(regex, tokens)
    longest = [""]
    run, depth = "", 0
    for kind, text in [*tokens, ("wild", "")]:
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
    for text in longest:
        if len(text) < SHORTEST_LITERAL or not text.isascii():
            raise SignatureError(
                f"regex {regex!r}: each alternative needs {SHORTEST_LITERAL} or more ASCII "
                f"characters of fixed text outside groups; found {text!r}"
            )
    return tuple(dict.fromkeys(longest))


def _check_repeats(regex: str, tokens: list[tuple[str, str]]) -> None:
    paths, depth = 1, 0
    for index, (kind, text) in enumerate(tokens):
        if kind == "repeat":
            before = tokens[index - 1] if index else ("", "")
            width = _width(regex, text, before[0])
            paths *= 1 if _one_way_on(before, tokens[index + 1 :]) else width
        elif kind == "bar" and depth:
            paths *= 2
        depth += {"open": 1, "close": -1}.get(kind, 0)
    if paths > MOST_PATHS:
        raise SignatureError(
            f"regex {regex!r} can backtrack over {paths} paths; at most {MOST_PATHS}: "
            "use smaller {m,n}"
        )


def _one_way_on(repeated: tuple[str, str], after: list[tuple[str, str]]) -> bool:
    """Whether at most one length of a repetition lets the rest be tried: nothing follows it, or a
    character that the repetition itself cannot hold."""
    rest = [token for token in after if token[0] != "close"]
    if not rest:
        return True
    if rest[0][0] != "char" or (len(rest) > 1 and rest[1][0] == "repeat"):
        return False
    atom = re.escape(repeated[1]) if repeated[0] == "char" else repeated[1]
    return repeated[0] != "close" and re.fullmatch(atom, rest[0][1]) is None


def _width(regex: str, repeat: str, before: str) -> int:
    """How many lengths a repetition can take."""
    if repeat == "?" and before not in ("open", "repeat"):
        return 2
    if before in ("close", "open", "repeat", ""):
        raise SignatureError(
            f"regex {regex!r} repeats a group or sets flags with {repeat!r}, which can backtrack "
            "without end"
        )
    low, _, high = repeat.strip("{}").partition(",")
    if repeat in "*+" or (repeat.endswith(",}")):
        raise SignatureError(
            f"regex {regex!r} repeats without an upper bound ({repeat!r}), which can backtrack "
            "without end: write {m,n}"
        )
    most = int(high or low)
    least = int(low or 0)
    if most > LONGEST_REPEAT:
        raise SignatureError(f"regex {regex!r} repeats {most} times; at most {LONGEST_REPEAT}")
    return most - least + 1
