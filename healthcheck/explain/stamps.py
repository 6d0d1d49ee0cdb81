"""Times that log collectors write in front of a line, whatever collector it was.

A stamp is known by its own form: ISO 8601, syslog's without a year, seconds since the epoch (also
in milli-, micro- and nanoseconds), and the kernel's seconds since boot in brackets.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

_ISO = re.compile(
    r"(?<!\d)(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))? ?(Z|[+-]\d\d:?\d\d)?"
)
_SYSLOG = re.compile(
    r"\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}(\d{1,2}) "
    r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?"
)
_EPOCH = re.compile(r"(?<![\w.:-])([12]\d{9})(?:\.(\d{1,9})|(\d{3}|\d{6}|\d{9}))?(?![\w.])")
_SINCE_BOOT = re.compile(r"\[ {0,12}(\d{1,10}\.\d{3,9})[\] ]")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAYS_BEFORE = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)


class Stamp(NamedTuple):
    """A time in seconds on a clock of that name; differences mean something on one clock only."""

    clock: str
    seconds: float


def find_stamp(text: str) -> Stamp | None:
    """The first stamp in what stands in front of a line, or None."""
    if found := _ISO.search(text):
        return _iso(found)
    if found := _SYSLOG.search(text):
        month = _MONTHS.index(found[1]) + 1
        whole = days_in_seconds(month, int(found[2]), int(found[3]), int(found[4]), int(found[5]))
        return Stamp("syslog", whole + float(f"0.{found[6] or 0}"))
    if found := _EPOCH.search(text):
        return Stamp("epoch", int(found[1]) + float(f"0.{found[2] or found[3] or 0}"))
    if found := _SINCE_BOOT.search(text):
        return Stamp("boot", float(found[1]))
    return None


def days_in_seconds(month: int, day: int, hour: int, minute: int, second: int) -> float:
    """Seconds since the first of January of a year without a leap day."""
    days = _DAYS_BEFORE[month - 1] + day
    return float(((days * 24 + hour) * 60 + minute) * 60 + second)


def _iso(found: re.Match[str]) -> Stamp | None:
    whole = _iso_seconds(found[1], found[2], found[4] or "Z")
    return None if whole is None else Stamp("epoch", whole + float(f"0.{found[3] or 0}"))


@lru_cache(maxsize=64)
def _iso_seconds(day: str, time: str, zone: str) -> float | None:
    try:
        return datetime.fromisoformat(f"{day}T{time}{zone.replace('Z', '+00:00')}").timestamp()
    except ValueError:
        return None
