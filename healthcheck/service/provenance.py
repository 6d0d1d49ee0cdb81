"""What the server's image says of itself: the patch series, its hashes, the audit, the release.

The image's entrypoint lays `provenance.json` beside the log; the log's folder is shared.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.files import open_regular
from healthcheck.worker import Repeated, Worker

NAME = "provenance.json"
LIMIT_BYTES = 256 * 1024
DEEPEST = 16


class Provenance:
    """The file beside a log, read again only when it has changed; in a `worker`'s thread if there
    is one."""

    def __init__(self, log: Path, worker: Worker | None = None) -> None:
        self._path = log.with_name(NAME)
        self._seen: tuple[int, int] | None = None
        self._value: Mapping[str, Any] | None = None
        nothing: Mapping[str, Any] | None = None
        self._looks = Repeated(self._look, nothing, worker=worker)

    def read(self, now: float = 0.0) -> Mapping[str, Any] | None:
        """Its content, None if there is none or it is no JSON object; `now` in seconds."""
        return self._looks.latest(now)

    def _look(self) -> Mapping[str, Any] | None:
        try:
            status = self._path.stat()
            seen = (status.st_size, status.st_mtime_ns)
            if seen != self._seen:
                self._value = _object(self._path)
                self._seen = seen
        except (OSError, ValueError, RecursionError):
            self._seen = self._value = None
        return self._value


def _object(path: Path) -> Mapping[str, Any] | None:
    with open_regular(path) as file:
        raw = file.read(LIMIT_BYTES + 1)
    if len(raw) > LIMIT_BYTES:
        return None
    # A report is JSON, which has neither NaN nor 1e999.
    value = json.loads(raw, parse_constant=str, parse_float=_number)
    return value if isinstance(value, dict) and _depth(value) <= DEEPEST else None


def _number(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text


def _depth(value: object) -> int:
    """How deep objects and lists lie in each other."""
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return depth
