"""What the container's cgroup says of memory; version 2, as every host of these cards has."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Memory:
    """Bytes in use, the limit, how many processes the kernel killed; None where it does not say."""

    used_bytes: int | None = None
    limit_bytes: int | None = None
    oom_kills: int | None = None


def folder(root: Path = ROOT, own: Path = Path("/proc/self/cgroup")) -> Path:
    """This process's cgroup. In a container it is the root of what is mounted there."""
    try:
        found = re.search(r"^0::/(.*)$", own.read_text("utf-8"), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return root
    inner = root / found[1] if found else root
    return inner if (inner / "memory.events").exists() else root


def read(cgroup: Path) -> Memory:
    """What it says now."""
    kills = re.search(r"^oom_kill (\d{1,15})$", _text(cgroup / "memory.events"), re.MULTILINE)
    return Memory(
        _number(_text(cgroup / "memory.current")),
        _number(_text(cgroup / "memory.max")),  # `max` is none
        int(kills[1]) if kills else None,
    )


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,17}\n?", text) else None


def _text(file: Path) -> str:
    try:
        return file.read_text("ascii", "replace")
    except OSError:
        return ""
