"""One line of a server's log, taken out of what wraps it: colours, container stamps, prefixes.

Knows the forms seen in practice: vLLM's process prefix and logger head (vllm 0.27.1,
logging_utils/formatter.py and utils/system_utils.py), compose, kubectl and syslog name prefixes,
Kubernetes (CRI) and `docker logs -t` stamps, the json-file driver's objects, torch's `[rank3]: `
(torch/distributed), and the margin that Python draws beside the parts of an exception group.
"""

from __future__ import annotations

import itertools
import json
import re
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

LONGEST_LINE = 16_384  # characters; the rest of a longer line is not looked at
LONGEST_TEXT = 400  # characters of one piece of evidence
YEAR_S = 365 * 86_400

_ANSI = re.compile(
    r"\x1b(?:\[[0-9;?]{0,30}[ -/]{0,2}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z])"
)
_COMPOSE = re.compile(
    r"\w[\w.-]{0,80} {0,40}\| |\[pod/[^\]\s]{1,200}\] "
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,64} [\w.@-]{1,64}\[\d{1,10}\]: "
)
_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?"
    r"(?: |$)(?:(?:stdout|stderr) [FP] ?)?"
)
_PROCESS = re.compile(r"\(([A-Z]\w{0,80}) pid=(\d{1,10})(?:, ip=[0-9a-f.:]{2,45})?\)")
_PROCESS_ALONE = re.compile(r"\(((?:Worker|EngineCore|APIServer|DPCoordinator)\w{0,80})\)")
_LEVELS = ("DEBUG ", "INFO ", "WARNING ", "ERROR ", "CRITICAL ")
_LOGGER = re.compile(
    r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d-\d\d \d\d:\d\d:\d\d) "
    r"\[[^\]\s]{1,200}:\d{1,6}\] ?"
)
_RANK = re.compile(r"_(.{1,80})$")
_TORCH_RANK = re.compile(r"\[rank(\d{1,5})\]: ?")
_GROUP_MARGIN = re.compile(r" {2,80}(?:\| |\+ (?=Exception Group Traceback )|\+[+-]{4}.*)")
_DAYS_BEFORE = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)


class LogLine(NamedTuple):
    """What a line says, who said it, and when.

    `container_s` and `logger_s` are seconds on clocks with different origins: only differences
    within one of them mean anything. `level` is empty for a line that no logger wrote.
    """

    text: str
    process: str = ""
    rank: str = ""
    level: str = ""
    container_s: float | None = None
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
    if text.find(" pid=", text.find(" pid=") + 1) < 0 and "it/s](" not in text:
        return [text]
    cuts = [m.start() for m in _PROCESS.finditer(text)]
    if cuts and _unwrap(text[: cuts[0]])[0] == "":
        cuts = cuts[1:]  # the line's own prefix
    edges = [0, *cuts, len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges) if text[a:b].strip()]


def parse(text: str) -> LogLine:
    """One cleaned piece as a LogLine; text that fits no known form is taken as it is."""
    container_s: float | None = None
    if not text.startswith("("):
        text, container_s = _unwrap(text)
    process, rank = "", ""
    if text.startswith("("):
        prefix = text[: text.find(")") + 1]
        process, rank = _owner(prefix)
        if process:
            text = text[len(prefix) :].removeprefix(" ")
    if text.startswith("[rank") and (torch := _TORCH_RANK.match(text)):
        process, rank = process or f"rank{torch[1]}", rank or torch[1]
        text = text[torch.end() :]
    level, logger_s = "", None
    if text.startswith(_LEVELS) and (head := _LOGGER.match(text)):
        level = head[1]
        logger_s = _logger_seconds(head[2])
        text = text[head.end() :]
    if text.startswith("  ") and (margin := _GROUP_MARGIN.match(text)):
        text = text[margin.end() :]
    return LogLine(text, process, rank, level, container_s, logger_s)


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
    behind = _RANK.search(name)
    return process, behind[1] if behind else ""


def _unwrap(text: str) -> tuple[str, float | None]:
    """Take off what containers put in front; returns the rest and the container's stamp."""
    stamp: float | None = None
    if text.startswith('{"'):
        text, stamp = _json_file(text)
    for _ in range(3):
        if found := _ISO.match(text):
            stamp = _iso_seconds(found) if stamp is None else stamp
        else:
            found = _COMPOSE.match(text)
        if not found:
            break
        text = text[found.end() :]
    return text, stamp


def _json_file(text: str) -> tuple[str, float | None]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text, None
    if not isinstance(value, dict) or not isinstance(value.get("log"), str):
        return text, None
    found = _ISO.match(str(value.get("time", "")))
    inner = clean(value["log"].rstrip("\r\n").rpartition("\r")[2])
    return inner, _iso_seconds(found) if found else None


def _iso_seconds(found: re.Match[str]) -> float | None:
    zone = (found[4] or "Z").replace("Z", "+00:00")
    try:
        whole = datetime.fromisoformat(f"{found[1]}T{found[2]}{zone}")
    except ValueError:
        return None
    return whole.timestamp() + float(f"0.{found[3] or 0}")


@lru_cache(maxsize=64)
def _logger_seconds(stamp: str) -> float | None:
    month, day, hour, minute, second = (int(part) for part in re.split(r"[- :]", stamp))
    if not 1 <= month <= 12:
        return None
    days = _DAYS_BEFORE[month - 1] + day
    return float(((days * 24 + hour) * 60 + minute) * 60 + second)


class LogClock:
    """Seconds since the first line, from whichever stamps the log carries.

    A time given from outside wins over a container's stamp, and that over the logger's, which has
    neither year nor fraction. Time never runs backwards: ranks are not written in order.
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
        elif line.container_s is not None and "given" not in self._origins:
            self._advance("container", line.container_s)
        elif line.logger_s is not None and self._origins.keys() <= {"logger"}:
            self._advance("logger", self._with_year(line.logger_s))
        return self.seconds

    def wait(self, seconds: float) -> None:
        """The log has been silent for `seconds` since its last line."""
        self._silence = max(seconds, 0.0)

    def _with_year(self, stamp: float) -> float:
        latest = self._latest.get("logger", stamp)
        return stamp + YEAR_S if latest - stamp > YEAR_S / 2 else stamp

    def _advance(self, base: str, stamp: float) -> None:
        if not abs(stamp) < 1e12:  # not a time at all
            return
        origin = self._origins.setdefault(base, stamp - self._elapsed)
        self._latest[base] = max(stamp, self._latest.get(base, stamp))
        self._elapsed = max(self._elapsed, stamp - origin)
