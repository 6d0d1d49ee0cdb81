"""The file in which the health service tells the server's parent that the server is stuck.

told/stuck.json beside the log is there while the verdict is NOT_READY or STALLED for want of
progress. The health service writes it (healthcheck/service/teller.py), the parent reads it here and
makes its folder, in which the service writes and nowhere else.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.files import open_regular
from healthcheck.signs.file import boot

PLACE = ("told", "stuck.json")
SCHEMA = 1
LIMIT_BYTES = 1024 * 1024
STUCK_IN = ("NOT_READY", "STALLED")
# First reasons of a want of progress; what the model writes is none of its processes' doing.
WANTS = ("progress.", "process.", "generation.unanswered")
DEEPEST = 4
LONGEST_TEXT = 300


@dataclass(frozen=True)
class Stuck:
    """What the file says: `at` in seconds of the host's monotonic clock, of the boot named."""

    at: float
    boot: str
    state: str
    code: str
    content: dict[str, Any]


def file(log: Path) -> Path:
    """Where it lies, beside a log."""
    return log.parent.joinpath(*PLACE)


def read(path: Path) -> Stuck | None:
    """What the file says, read without trust; None for what the health service would not have
    written on this host since its boot."""
    try:
        if path.is_symlink():
            return None
        with open_regular(path) as file:
            raw = file.read(LIMIT_BYTES + 1)
        content = json.loads(raw) if len(raw) <= LIMIT_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None
    keys = {"schema", "at", "boot", "state", "reasons", "timeline", "columns", "readings"}
    if not isinstance(content, dict) or content.keys() != keys or not _plain(content):
        return None
    state, reasons, at = content["state"], content["reasons"], content["at"]
    if content["schema"] != SCHEMA or content["boot"] != boot() or state not in STUCK_IN:
        return None
    if not isinstance(at, float) or not isinstance(reasons, list):
        return None
    codes = [row[0] for row in reasons if isinstance(row, list) and row]
    code = next((c for c in codes if isinstance(c, str) and c.startswith(WANTS)), None)
    return None if code is None else Stuck(at, content["boot"], state, code, content)


def _plain(value: object, depth: int = 0) -> bool:
    """Whether a value is made of short printable texts and finite numbers alone."""
    if isinstance(value, str):
        return len(value) <= LONGEST_TEXT and value.isprintable()
    if isinstance(value, dict | list):
        inner = [*value, *value.values()] if isinstance(value, dict) else value
        return depth < DEEPEST and all(_plain(each, depth + 1) for each in inner)
    return (
        value is None
        or isinstance(value, int)
        or (isinstance(value, float) and math.isfinite(value))
    )


def make_folder(log: Path) -> None:
    """The folder of the file, where any user may put one and take away only his own. Raises
    OSError."""
    folder = file(log).parent
    folder.mkdir(parents=True, exist_ok=True)
    if folder.stat().st_uid == os.geteuid():
        folder.chmod(0o1777)
