"""Tells the server's parent that the server is stuck, by the file of healthcheck/flights/told.py.

The file is written anew when the verdict changes. Without its folder, or on a volume that cannot be
written, the service says so once and goes on.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from healthcheck.flights.model import KEPT_S
from healthcheck.flights.told import LONGEST_TEXT, SCHEMA, STUCK_IN, WANTS, file
from healthcheck.service.snapshot import Snapshot
from healthcheck.signs.file import boot
from healthcheck.worker import Worker

# Of all engines together: ten minutes of one a second, of sixteen engines one in two seconds.
MOST_READINGS = 5000
COLUMNS = (
    *("age_s", "state", "engine", "running", "waiting", "cache_usage"),
    *("prompt_tokens", "generation_tokens", "drafts", "accepted"),
)


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


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text[:LONGEST_TEXT])
