"""One line of a server's log: what it says, who said it, and when.

Knows vLLM's own form, the process prefix and the logger's head (vllm 0.27.1,
logging_utils/formatter.py and utils/system_utils.py), torch's `[rank3]: ` (torch/distributed), and
the margin that Python draws beside the parts of an exception group. What collectors put in front
of it is taken off before (prefixes.py).
"""

from __future__ import annotations

import itertools
import re
from functools import lru_cache
from typing import NamedTuple

from healthcheck.explain.stamps import Stamp, days_in_seconds

LONGEST_LINE = 16_384  # characters; the rest of a longer line is not looked at
LONGEST_TEXT = 400  # characters of one piece of evidence
YEAR_S = 365 * 86_400

_ANSI = re.compile(
    r"\x1b(?:\[[0-9;?]{0,30}[ -/]{0,2}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z])"
)
_PROCESS = re.compile(r"\(([A-Z]\w{0,80}) pid=(\d{1,10})(?:, ip=[0-9a-f.:]{2,45})?\)")
_PROCESS_ALONE = re.compile(r"\(((?:Worker|EngineCore|APIServer|DPCoordinator)\w{0,80})\)")
_LEVELS = ("DEBUG ", "INFO ", "WARNING ", "ERROR ", "CRITICAL ")
_LOGGER = re.compile(
    r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d-\d\d \d\d:\d\d:\d\d) "
    r"(\[[^\]\s]{1,200}:\d{1,6}\]) ?"
)
_RANK = re.compile(r"_(.{1,80})$")
_TORCH_RANK = re.compile(r"\[rank(\d{1,5})\]: ?")
_AITER = re.compile(r"\[aiter\] \[pid=(\d{1,10}) pname=([^\]\s]{1,80})\] ")  # from 0.1.14 on
_GROUP_MARGIN = re.compile(r" {2,80}(?:\| |\+ (?=Exception Group Traceback )|\+[+-]{4}.*)")


class LogLine(NamedTuple):
    """What a line says, who said it, and when.

    `stamp` is the collector's time and `logger_s` the logger's, on clocks with different origins:
    only differences within one of them mean anything. `level` and `source`, the place in the code,
    are empty for a line that no logger wrote.
    """

    text: str
    process: str = ""
    rank: str = ""
    level: str = ""
    source: str = ""
    stamp: Stamp | None = None
    logger_s: float | None = None


def clean(text: str) -> str:
    """`text` cut to LONGEST_LINE, without colours and without NUL bytes."""
    text = text[:LONGEST_LINE]
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return text.replace("\x00", "")


def printable(text: str) -> str:
    """`text` safe to show: no control characters, no more than LONGEST_TEXT."""
    shown = text[:LONGEST_TEXT]
    return shown if shown.isprintable() else re.sub(r"[^ -~]", _visible, shown)


def _visible(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else " "


def pieces(text: str) -> list[str]:
    """`text` parted where another process wrote into the same line, as progress bars allow."""
    if text.find(" pid=", 1) < 0:
        return [text]
    cuts = [found.start() for found in _PROCESS.finditer(text) if found.start()]
    edges = [0, *cuts, len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges) if text[a:b].strip()]


def parse(text: str, stamp: Stamp | None = None) -> LogLine:
    """One cleaned piece as a LogLine; text that fits no known form is taken as it is."""
    process, rank = "", ""
    if text.startswith("("):
        prefix = text[: text.find(")") + 1]
        process, rank = _owner(prefix)
        if process:
            text = text[len(prefix) :].removeprefix(" ")
    if text.startswith("[rank") and (torch := _TORCH_RANK.match(text)):
        process, rank = process or f"rank{torch[1]}", rank or torch[1]
        text = text[torch.end() :]
    level, source, logger_s = "", "", None
    if text.startswith(_LEVELS) and (head := _LOGGER.match(text)):
        level, source = head[1], head[3]
        logger_s = _logger_seconds(head[2])
        text = text[head.end() :]
    if text.startswith("  ") and (margin := _GROUP_MARGIN.match(text)):
        text = text[margin.end() :]
    if not process and (builder := _AITER.match(text)):
        process = f"{builder[2]} pid={builder[1]}"
    return LogLine(text, process, rank, level, source, stamp, logger_s)


def rank_of(process: str) -> str:
    """The rank in the name of a process, or nothing."""
    behind = _RANK.search(process.partition(" ")[0])
    return behind[1] if behind else ""


@lru_cache(maxsize=256)
def _owner(prefix: str) -> tuple[str, str]:
    """The process and the rank that a prefix names, or nothing."""
    found = _PROCESS.fullmatch(prefix)
    alone = None if found else _PROCESS_ALONE.fullmatch(prefix)
    if found:
        name, process = found[1], f"{found[1]} pid={found[2]}"
    elif alone:
        name = process = alone[1]
    else:
        return "", ""
    return process, rank_of(name)


@lru_cache(maxsize=64)
def _logger_seconds(stamp: str) -> float | None:
    month, day, hour, minute, second = (int(part) for part in re.split(r"[- :]", stamp))
    if not 1 <= month <= 12:
        return None
    return days_in_seconds(month, day, hour, minute, second)


class LogClock:
    """Seconds since the first line, from whichever stamps the log carries.

    A time given from outside wins over a collector's stamp, of which one clock only is used, and
    that over the logger's, which has neither year nor fraction. Time never runs backwards: ranks
    are not written in order.
    """

    def __init__(self) -> None:
        self._origins: dict[str, float] = {}
        self._latest: dict[str, float] = {}
        self._elapsed = 0.0
        self._silence = 0.0

    @property
    def seconds(self) -> float | None:
        """Seconds from the first stamp to now, or None if no line had a stamp."""
        return self._elapsed + self._silence if self._origins else None

    @property
    def last_line_s(self) -> float | None:
        """Seconds from the first stamp to the last line, or None if no line had a stamp."""
        return self._elapsed if self._origins else None

    def note(self, line: LogLine, at: float | None) -> float | None:
        """Take in a line's stamps; returns the seconds of that line."""
        self._elapsed += self._silence
        self._silence = 0.0
        if at is not None:
            self._advance("given", at)
        elif line.stamp is not None and self._origins.keys() <= {"logger", line.stamp.clock}:
            wraps = line.stamp.clock == "syslog"
            seconds = line.stamp.seconds
            self._advance(
                line.stamp.clock, self._with_year("syslog", seconds) if wraps else seconds
            )
        elif line.logger_s is not None and self._origins.keys() <= {"logger"}:
            self._advance("logger", self._with_year("logger", line.logger_s))
        return self.seconds

    def wait(self, seconds: float) -> None:
        """The log has been silent for `seconds` since its last line."""
        self._silence = max(seconds, 0.0)

    def _with_year(self, clock: str, stamp: float) -> float:
        latest = self._latest.get(clock, stamp)
        return stamp + YEAR_S if latest - stamp > YEAR_S / 2 else stamp

    def _advance(self, base: str, stamp: float) -> None:
        if not abs(stamp) < 1e12:  # not a time at all
            return
        origin = self._origins.setdefault(base, stamp - self._elapsed)
        self._latest[base] = max(stamp, self._latest.get(base, stamp))
        self._elapsed = max(self._elapsed, stamp - origin)
