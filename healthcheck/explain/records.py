"""Lines that are JSON records: which of their values is the line of the server.

Collectors name the text as they like (`log`, `message`, `MESSAGE`, `textPayload`, `line`, ...), so
it is the value that holds vLLM's own form, and from then on the value of that name. vLLM's own
records, of a logging configuration with a JSON formatter, also hold process, level and traceback.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import NamedTuple

from healthcheck.explain.lines import clean
from healthcheck.explain.stamps import Stamp, find_stamp

MOST_DEPTH = 3  # of objects in one another
MOST_VALUES = 200  # of one record that are looked at

# Where no value shows vLLM's own form, the names in use, the most usual first.
_NAMES = ("log", "message", "MESSAGE", "msg", "textPayload", "line", "body", "text")
ARRAYS = ('"MESSAGE":[', '"MESSAGE": [')  # how journald writes a text with colours
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class Record(NamedTuple):
    """What a record says: its lines, when, and, of vLLM's own, who and at which level."""

    lines: tuple[str, ...]
    stamp: Stamp | None
    process: str
    level: str
    path: tuple[str, ...]


def read_record(text: str, path: tuple[str, ...], is_own: Callable[[str], bool]) -> Record | None:
    """The record that `text` begins with, or None if that is none or holds no line.

    `path` leads to the value that held the line in earlier records; `is_own` tells vLLM's form.
    """
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    values = dict(_strings(value, ()))
    own = value.get("levelname") in _LEVELS and ("message",) in values
    chosen = ("message",) if own else _choose(values, path, is_own)
    if chosen is None:
        return None
    lines = values[chosen].rstrip("\r\n").split("\n")
    trace = value.get("exc_info") if own else None
    if isinstance(trace, str):
        lines += trace.rstrip("\n").split("\n")
    return Record(
        lines=tuple(clean(line.rstrip("\r").rpartition("\r")[2]) for line in lines),
        stamp=_stamp(values),
        process=_process(value) if own else "",
        level=str(value["levelname"]) if own else "",
        path=chosen,
    )


def _strings(
    value: dict[str, object], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every text of a record by the names that lead to it."""
    for name, inner in list(value.items())[:MOST_VALUES]:
        path = (*above, name)
        if isinstance(inner, dict) and len(path) < MOST_DEPTH:
            yield from _strings(inner, path)
        elif isinstance(inner, str):
            yield path, inner
        elif isinstance(inner, int | float) and not isinstance(inner, bool):
            yield path, str(inner)
        elif isinstance(inner, list) and inner and all(_is_byte(one) for one in inner):
            yield path, bytes(inner).decode("utf-8", errors="replace")  # journald, of colours


def _is_byte(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 256


def _choose(
    values: dict[tuple[str, ...], str], path: tuple[str, ...], is_own: Callable[[str], bool]
) -> tuple[str, ...] | None:
    if path in values:
        return path
    for candidate, text in values.items():
        if is_own(text):
            return candidate
    for name in _NAMES:
        for candidate in values:
            if candidate[-1] == name:
                return candidate
    return None


def _stamp(values: dict[tuple[str, ...], str]) -> Stamp | None:
    for path, text in values.items():
        name = path[-1].lower()
        if ("time" in name or name in ("ts", "date", "@t")) and (stamp := find_stamp(text[:40])):
            return stamp
    return None


def _process(value: dict[str, object]) -> str:
    """As vLLM's prefix names it: the main process of `vllm serve` is the API's."""
    name = str(value.get("processName", ""))[:80]
    name = "APIServer" if name == "MainProcess" else name
    number = value.get("process")
    return f"{name} pid={number}" if name and isinstance(number, int) else name
