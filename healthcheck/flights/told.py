"""The file in which the health service tells the server's parent that the server is stuck.

told/stuck.json beside the log is there while the verdict is NOT_READY or STALLED for want of
progress, and is written anew when that changes. Its folder is the parent's and is the only place
where the health service writes; without the folder, or on a volume that cannot be written, it says
so once and goes on.
"""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.files import open_regular
from healthcheck.flights.model import FOLDER, KEPT_S, Flight, listed
from healthcheck.signs.file import boot
from healthcheck.worker import Repeated, Worker

# The recorder imports what is here without the health service's packages.
if TYPE_CHECKING:
    from healthcheck.service.loop import Snapshot

PLACE = ("told", "stuck.json")
SCHEMA = 1
LIMIT_BYTES = 1024 * 1024
# Of all engines together: ten minutes of one a second, of sixteen engines one in two seconds.
MOST_READINGS = 5000
STUCK_IN = ("NOT_READY", "STALLED")
# First reasons of a want of progress; what the model writes is none of its processes' doing.
WANTS = ("progress.", "process.", "generation.unanswered")
COLUMNS = (
    *("age_s", "state", "engine", "running", "waiting", "cache_usage"),
    *("prompt_tokens", "generation_tokens", "drafts", "accepted"),
)
DEEPEST = 4
LONGEST_TEXT = 300
PAUSE_S = 5.0  # between two looks at the archives


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


def is_stuck(snapshot: Snapshot) -> bool:
    """Whether the verdict says that work gets no further."""
    codes = [note.code for note in snapshot.verdict.notes]
    if snapshot.verdict.state.value not in STUCK_IN or "recovery.pending" in codes:
        return False
    return any(code.startswith(WANTS) for code in codes)


class Teller:
    """Keeps ten minutes of readings, and the file in step with the verdict. `turn` is called after
    each turn of the loop, asks nothing and waits for no disk: files are the `worker`'s."""

    def __init__(
        self,
        log: Path,
        snapshot: Callable[[], Snapshot],
        worker: Worker,
        say: Callable[[str], None],
    ) -> None:
        self._file = file(log)
        self._snapshot = snapshot
        self._worker = worker
        self._say = say
        self._readings: deque[tuple[float, list[Any]]] = deque(maxlen=MOST_READINGS)
        self._told: str | None = "a service before this one may have left a file"
        self._said = False

    def turn(self) -> None:
        """Take the readings of a turn, and write or remove the file if it is time to."""
        seen = self._snapshot()
        self._take(seen)
        if seen.verdict.state.value == "DRAINING":
            return  # a stop of both begins with ours: the parent may still ask
        state = seen.verdict.state.value if is_stuck(seen) else None
        if state == self._told:
            return
        self._told = state
        if state is None:
            self._worker.do(self._remove)
        else:
            text = json.dumps(self._content(seen), allow_nan=False)
            self._worker.do(lambda: self._write(text))

    def _take(self, seen: Snapshot) -> None:
        for name, engine in seen.memory.engines.items():
            one, spec = engine.sample, engine.sample.speculation
            self._readings.append(
                (
                    seen.at,
                    [
                        *(seen.verdict.state.value, name, one.running, one.waiting),
                        *(one.cache_usage, one.prompt_tokens, one.generation_tokens),
                        *((spec.drafts, spec.accepted) if spec else (None, None)),
                    ],
                )
            )

    def _content(self, seen: Snapshot) -> dict[str, Any]:
        now = seen.at
        return {
            "schema": SCHEMA,
            "at": now,
            "boot": boot(),
            "state": seen.verdict.state.value,
            "reasons": [
                [note.code, _printable(note.detail)]
                for note in seen.verdict.notes
                if note.code.startswith(WANTS) or not note.detail
            ],
            "timeline": [[now - t.at, t.state.value, t.code] for t in seen.memory.timeline],
            "columns": list(COLUMNS),
            "readings": [
                [round(now - at, 1), *row] for at, row in self._readings if now - at <= KEPT_S
            ],
        }

    def _write(self, text: str) -> None:
        partial = self._file.with_name(f".{self._file.name}")
        try:
            partial.write_text(text, "utf-8")
            partial.replace(self._file)
        except OSError as e:
            self._trouble(e)

    def _remove(self) -> None:
        try:
            self._file.unlink(missing_ok=True)
        except NotADirectoryError:
            pass
        except OSError as e:
            self._trouble(e)

    def _trouble(self, error: OSError) -> None:
        if not self._said:
            self._said = True
            fix = "no stacks are kept; see Flight recorder in healthcheck/README.md"
            self._say(f"health: {self._file}: {error.strerror}: {fix}")


class Flights:
    """The newest archive beside a log, looked for in the worker's thread."""

    def __init__(self, log: Path, worker: Worker | None = None) -> None:
        self._folder = log.with_name(FOLDER)
        nothing: Flight | None = None
        self._looks = Repeated(self._look, nothing, PAUSE_S, worker)

    def last(self, now: float) -> Flight | None:
        """As far as is known; None if there is none."""
        return self._looks.latest(now)

    def _look(self) -> Flight | None:
        try:
            return next(iter(listed(self._folder)), None)
        except OSError:
            return None


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


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text[:LONGEST_TEXT])


def make_folder(log: Path) -> None:
    """The folder of the file, where any user may put one and take away only his own. Raises
    OSError."""
    folder = file(log).parent
    folder.mkdir(parents=True, exist_ok=True)
    if folder.stat().st_uid == os.geteuid():
        folder.chmod(0o1777)
