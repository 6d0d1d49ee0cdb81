"""What an archive is: its place and name, what it holds, and the reading of it.

One gzip file of JSON, at most LIMIT_BYTES unpacked, named by the UTC second, what it was made for
and the verdict's first reason: 20260131T235959Z.STALLED.progress.stalled.json.gz.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deploy.files import open_regular

FOLDER = "flights"  # beside the log
SCHEMA = 1
KEPT = 5
LIMIT_BYTES = 8 * 1024 * 1024
# What an archive is made for, beside the verdict's states NOT_READY and STALLED.
SIGTERM = "SIGTERM"
KEPT_S = 600.0  # of vital signs and of readings
MOST_FRAMES = 48  # of a thread, from the innermost on
MOST_THREADS = 32  # of a process; the main one is first
LONGEST_WORD = 200

_NAME = re.compile(r"(\d{8}T\d{6}Z)\.([A-Z_]{1,20})\.([a-z][a-z_.]{0,60})\.json\.gz", re.ASCII)
_STAMP = "%Y%m%dT%H%M%SZ"


class FlightError(ValueError):
    """A file is no archive; the message is one line: the file, what is wrong, the fix."""


@dataclass(frozen=True)
class Frame:
    """One call of a stack: as py-spy names function and file; line 0 where that is native code."""

    function: str
    file: str
    line: int

    @property
    def place(self) -> str:
        """Where it is, on one line."""
        return f"{self.function} ({self.file}:{self.line})" if self.line else self.function


@dataclass(frozen=True)
class Thread:
    """A thread's calls, the innermost first."""

    name: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Stack:
    """What a process of the server was doing.

    `state` is the kernel's letter and `kernel` where in it the main thread waits, empty if it does
    not or the kernel does not tell. `native`: calls outside Python are among the frames. `trouble`
    says why there are no threads, or no native frames.
    """

    name: str
    pid: int
    state: str
    kernel: str
    native: bool
    threads: tuple[Thread, ...]
    trouble: str = ""


@dataclass(frozen=True)
class Flight:
    """An archive by its name: when it was made, for what, and the verdict's first reason."""

    path: Path
    at: datetime
    why: str
    code: str


def name_of(at: datetime, why: str, code: str) -> str:
    """The name of an archive."""
    name = f"{at.astimezone(UTC).strftime(_STAMP)}.{why}.{code}.json.gz"
    if not _NAME.fullmatch(name):
        raise ValueError(name)
    return name


def flight(path: Path) -> Flight | None:
    """What a file's name says; None if it is not that of an archive."""
    named = _NAME.fullmatch(path.name)
    if named is None:
        return None
    try:
        at = datetime.strptime(named[1], _STAMP).replace(tzinfo=UTC)
    except ValueError:
        return None
    return Flight(path, at, named[2], named[3])


def listed(folder: Path) -> list[Flight]:
    """The archives in a folder, the newest first; none where there is no folder. Raises OSError."""
    try:
        found = [flight(path) for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((f for f in found if f is not None), key=lambda f: f.path.name, reverse=True)


def load(path: Path) -> dict[str, Any]:
    """An archive's content. Raises FlightError, and OSError for a file that cannot be read."""
    try:
        with open_regular(path) as file, gzip.GzipFile(fileobj=file) as unpacked:
            raw = unpacked.read(LIMIT_BYTES + 1)
    except (gzip.BadGzipFile, zlib.error, EOFError) as e:
        raise FlightError(f"{path}: is no archive of a flight ({e}); give another file") from e
    try:
        content = json.loads(raw) if len(raw) <= LIMIT_BYTES else None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise FlightError(f"{path}: holds no flight of schema {SCHEMA}; give another file")
    return content


def stacks(content: Mapping[str, Any]) -> tuple[Stack, ...]:
    """The stacks of an archive's content. Raises FlightError."""
    try:
        return tuple(_stack(each) for each in content["processes"])
    except (KeyError, TypeError, ValueError) as e:
        raise FlightError(f"processes: cannot be read ({e!r}); the archive is damaged") from e


def _stack(table: Mapping[str, Any]) -> Stack:
    threads = tuple(
        Thread(str(t["name"]), tuple(Frame(str(f), str(p), int(n)) for f, p, n in t["frames"]))
        for t in table["threads"]
    )
    return Stack(
        *(str(table["name"]), int(table["pid"]), str(table["state"]), str(table["kernel"])),
        *(bool(table["native"]), threads, str(table["trouble"])),
    )


def stack_as_json(stack: Stack) -> dict[str, Any]:
    """A stack as it stands in an archive."""
    return {
        **{k: getattr(stack, k) for k in ("name", "pid", "state", "kernel", "native", "trouble")},
        "threads": [
            {"name": t.name, "frames": [[f.function, f.file, f.line] for f in t.frames]}
            for t in stack.threads
        ],
    }
