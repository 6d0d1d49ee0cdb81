"""The end of the server's log as an archive holds it: without prompts, answers and keys."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from deploy.files import open_regular
from deploy.redaction import Redaction

TAIL_BYTES = 64 * 1024
MOST_LINES = 200
LONGEST_LINE = 500
MARK_BYTES = 1024

# What --enable-log-requests, --enable-log-outputs and a dying engine write of requests; the rest of
# such a line is a prompt, an answer or parameters, which may hold text as well.
_REQUEST = re.compile(
    r"(?:Received request|Request \S{1,100} details|Generated response|Dumping \w{1,20})\b.*"
)
# Named texts in errors and in dumps of objects: to the end of the line, for a text may hold quotes.
_NAMED = re.compile(
    r"\b(?:prompt|prompts|messages|content|text|output|outputs|input|input_value|stop|"
    r"\w{0,20}token_ids)['\"]?\s{0,3}[:=]\s{0,3}['\"\[{(].*"
)
_SECRET = re.compile(
    r"((?:api[_-]?key|token|secret|password)['\"]?\s{0,3}[:=]\s{0,3}\[?\s{0,3}['\"]?)"
    r"[^\s'\",\])}]{4,}",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"'[^']{61,}(?:'|$)|\"[^\"]{61,}(?:\"|$)")


def tail(log: Path, redaction: Redaction) -> dict[str, Any]:
    """The last lines of a log, and a mark by which `is_of` knows this log again; empty without
    one."""
    try:
        with open_regular(log) as file:
            size = file.seek(0, 2)
            file.seek(max(size - TAIL_BYTES, 0))
            raw = file.read(TAIL_BYTES)
    except OSError:
        return {"bytes": 0, "mark": "", "lines": []}
    whole = raw.decode("utf-8", "replace").split("\n")
    if len(raw) < size:
        del whole[0]  # its beginning is missing
    return {
        "bytes": size,
        "mark": _mark(raw[-MARK_BYTES:]),
        "lines": [clean(line, redaction) for line in whole[-MOST_LINES:] if line.strip()],
    }


def clean(line: str, redaction: Redaction) -> str:
    """One line without texts of requests, keys, names of hosts and paths."""
    shown = "".join(c if c.isprintable() else " " for c in line[: 4 * LONGEST_LINE])
    shown = _REQUEST.sub(lambda m: f"{m[0].split()[0]} <request>", shown)
    shown = _NAMED.sub("<text>", shown)
    shown = _SECRET.sub(r"\1<key>", shown)
    shown = _QUOTED.sub("<text>", shown)
    return redaction.text(shown)[:LONGEST_LINE]


def is_of(log: Path, told: object) -> bool:
    """Whether a log holds what `tail` saw, at the place where it saw it: it is the same one, or a
    copy, and may have grown since."""
    if not isinstance(told, dict) or not isinstance(told.get("bytes"), int) or not told["bytes"]:
        return False
    try:
        with open_regular(log) as file:
            file.seek(max(told["bytes"] - MARK_BYTES, 0))
            seen = file.read(min(told["bytes"], MARK_BYTES))
    except (OSError, ValueError):
        return False
    return _mark(seen) == told.get("mark")


def _mark(end: bytes) -> str:
    return hashlib.sha256(end).hexdigest()
