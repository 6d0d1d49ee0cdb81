"""What collectors put in front of the server's lines, learnt from the log itself.

vLLM's own form (its process prefix, the head of its logger) and Python's header of a traceback are
known; whatever stands in front of one of them is a prefix, and a line that has none of these forms
is freed of the prefixes that others had. So no collector has to be known by name. Of a prefix the
words with digits in them (times, numbers, ids) may differ from line to line; the others are alike,
unless two prefixes differ in few of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from healthcheck.explain.records import read_record
from healthcheck.explain.stamps import Stamp, find_stamp

LONGEST_PREFIX = 400  # characters
MOST_SHAPES = 32  # of one log: pods, streams, months
MOST_NESTED = 5  # a collector's prefix within another's

# vLLM 0.27.1, logging_utils/formatter.py and utils/system_utils.py; uvicorn; torch/distributed.
_PID = r"\([A-Z]\w{0,80} pid=\d{1,10}(?:, ip=[0-9a-f.:]{2,45})?\)"
_OWN = re.compile(
    rf"{_PID}|\((?:Worker|EngineCore|APIServer|DPCoordinator)\w{{0,80}}\) "
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[|INFO: {5}"
    r"|\[rank\d{1,5}\]: "
)
_HEADER = "Traceback (most recent call last)"
# The stamp of Kubernetes (CRI) and of `docker logs -t`: the one form that marks parts of a line.
_STAMPED = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})? ?(?:Z|[+-]\d\d:?\d\d)?(?: |$)"
    r"(?:(stdout|stderr) ([FP])(?:[\w:]{0,40})(?: |$))?"
)
_TOKEN = re.compile(r"(\s+)|(\w+)|(.)", re.DOTALL)
_MONTH_OR_DAY = re.compile(r"[A-Z][a-z]{2}")
# One field a line, as `journalctl -o verbose` and pretty JSON have it.
_FIELD = re.compile(r'\s{0,40}(?:"[^"]{1,80}"\s{0,4}:|_{0,2}[A-Z][A-Z0-9_]{0,60}=)')
_BRACKETS = re.compile(r"\s{0,40}[\[\]{}]{1,4},?\s{0,4}")


class Unwrapped(NamedTuple):
    """A line of the server out of its wrapping.

    `part_of` names the stream of which it is a part only: the next one of that stream goes on.
    `stream` is named where the wrapping tells it. Process and level are those of a JSON record.
    """

    text: str
    stamp: Stamp | None = None
    process: str = ""
    level: str = ""
    stream: str = ""
    part: bool = False


@dataclass(frozen=True)
class _Shape:
    """What a prefix looks like: words (None where any may stand), spaces and signs.

    `tail` are the spaces at its end, which are exact: an indented line begins behind them.
    """

    tokens: tuple[str | None, ...]
    tail: str
    pattern: re.Pattern[str]
    is_field: bool = False

    @property
    def words(self) -> int:
        return sum(1 for token in self.tokens if token is None or token[0].isalnum())


class Prefixes:
    """The prefixes of one log. `tells` says of a text that a line of the server begins in it."""

    def __init__(self, tells: Callable[[str], bool] = lambda _: False) -> None:
        self._tells = tells
        self._shapes: list[_Shape] = []
        self._path: tuple[str, ...] = ()
        self.streams = False  # whether its lines are of a runtime that parts long ones
        self.fields = False  # whether the log has one field of a record a line

    def unwrap(self, text: str, *, learn: bool) -> Iterator[Unwrapped]:
        """The lines of the server in one line of the log: one, none (a field of something else), or
        several out of a JSON record. Prefixes are only learnt where `learn` says so."""
        stamp: Stamp | None = None
        stream, part = "", False
        for _ in range(MOST_NESTED):
            if _OWN.match(text):
                break
            if text.startswith("{") and (record := read_record(text, self._path, _is_own)):
                if learn and any(_is_own(line) for line in record.lines):
                    self._path = record.path
                stamp = stamp or record.stamp
                if record.process or len(record.lines) > 1:
                    for line in record.lines:
                        yield Unwrapped(line, stamp, record.process, record.level, stream, part)
                    return
                text = record.lines[0]
                continue
            if head := _STAMPED.match(text):
                stamp = stamp or find_stamp(head[0])
                stream, part = head[1] or stream, part or head[2] == "P"
                self.streams = self.streams or (learn and bool(stream))
                text = text[head.end() :]
                continue
            split = self._known(text) or (self._learn(text) if learn else _anchored(text))
            if split is None:
                break
            front, text = split
            stamp = stamp or find_stamp(front)
            if front.endswith('"'):
                text = _unquoted(text)
        else:
            yield Unwrapped(text, stamp, stream=stream, part=part)
            return
        if self.fields and (_FIELD.match(text) or _BRACKETS.fullmatch(text)):
            return
        yield Unwrapped(text, stamp, stream=stream, part=part)

    @property
    def arrays(self) -> bool:
        """Whether texts may be written as the numbers of their bytes."""
        return self._path == ("MESSAGE",)

    def _known(self, text: str) -> tuple[str, str] | None:
        for shape in self._shapes:
            if (found := shape.pattern.match(text)) and found.end() < len(text):
                return found[0], text[found.end() :]
        return None

    def _learn(self, text: str) -> tuple[str, str] | None:
        split = _anchored(text)
        if split is None or self._tells(split[0]):
            return None
        front = split[0]
        shape = _shape(front)
        self.fields = self.fields or shape.is_field
        for index, known in enumerate(self._shapes):
            if merged := _merge(known, shape):
                self._shapes[index] = merged
                return split
        self._shapes = [shape, *self._shapes][:MOST_SHAPES]
        return split


def _is_own(text: str) -> bool:
    return _OWN.search(text[: LONGEST_PREFIX + 100]) is not None or _HEADER in text[:LONGEST_PREFIX]


def _anchored(text: str) -> tuple[str, str] | None:
    """A line parted at the first form that is vLLM's or Python's own, or None.

    What was written into the same line by another process, as progress bars allow, is no prefix:
    it does not end in a space or a sign that parts.
    """
    window = text[: LONGEST_PREFIX + 100]
    record = window.find('{"')
    own = _OWN.search(window)
    header = -1 if own else window.find(_HEADER)
    at = own.start() if own else header
    if at <= 0:
        return None
    if 0 < record < at and read_record(text[record:], (), _is_own):
        at = record
    front = text[:at]
    if (
        at > LONGEST_PREFIX
        or " pid=" in front
        or front[-1].isalnum()
        or front[-1] in "])(%'"
        or not front.strip()
    ):
        return None
    if header > 0 and ("Exception Group" in front or not re.search(r"\w", front)):
        return None
    return front, text[at:]


def _shape(front: str) -> _Shape:
    tokens: list[str | None] = []
    for space, word, sign in _TOKEN.findall(front):
        if word and (any(one.isdigit() for one in word) or _MONTH_OR_DAY.fullmatch(word)):
            tokens.append(None)
        else:
            tokens.append(" " if space else word or sign)
    tail = front[len(front.rstrip()) :]
    return _compiled(tuple(tokens), tail, is_field=_FIELD.match(front) is not None)


def _compiled(tokens: tuple[str | None, ...], tail: str, *, is_field: bool = False) -> _Shape:
    parts = []
    for index, part in enumerate(tokens):
        if part is None:
            parts.append(r"\w{1,80}")
        elif part == " ":
            parts.append(r"\s{0,20}" if index and tokens[index - 1] in ("[", "<") else r"\s{1,20}")
        else:
            parts.append(re.escape(part))
    if tail:
        parts[-1] = re.escape(tail)
    return _Shape(tokens, tail, re.compile("".join(parts)), is_field)


def _merge(known: _Shape, new: _Shape) -> _Shape | None:
    """One shape for both, if they are alike but for a third of their words at most."""
    if len(known.tokens) != len(new.tokens) or known.tail != new.tail:
        return None
    if known.is_field or new.is_field:
        return None
    merged: list[str | None] = []
    differ = 0
    for one, other in zip(known.tokens, new.tokens, strict=True):
        if one == other:
            merged.append(one)
            continue
        if not (_wordlike(one) and _wordlike(other)):
            return None
        differ += one is not None
        merged.append(None)
    return _compiled(tuple(merged), new.tail) if 3 * differ <= new.words else None


def _wordlike(token: str | None) -> bool:
    return token is None or token[0].isalnum() or token[0] == "_"


def _unquoted(text: str) -> str:
    """The text of a quoted value of which the opening quote is gone: JSON's, CSV's or logfmt's."""
    try:
        value, end = json.JSONDecoder().raw_decode(f'"{text}')
    except ValueError:
        return text
    if isinstance(value, str) and text[end - 1 : end] != '"':
        return value
    return text[: text.rfind('"')].replace('""', '"')
