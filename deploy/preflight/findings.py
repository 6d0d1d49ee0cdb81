"""What preflight says: one finding a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["fail", "warn", "ok", "unknown"]

# Worst first, as they are shown.
LEVELS: tuple[Level, ...] = ("fail", "warn", "unknown", "ok")


@dataclass(frozen=True)
class Finding:
    """One answer: `fail` stops a start, `unknown` means that it could not be told.

    `seen` is what was read, `why` names the reason with its source, `remedy` is the exact setting
    or command, empty when nothing is to be done.
    """

    check: str
    level: Level
    seen: str
    why: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Unknown:
    """A fact that could not be read, and what stood in the way."""

    reason: str
