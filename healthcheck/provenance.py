"""What the server's image says of itself: the patch series, its hashes, the audit, the release.

The image's entrypoint lays `provenance.json` beside the log; the log's folder is shared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "provenance.json"
LIMIT_BYTES = 256 * 1024


class Provenance:
    """The file beside a log, read again only when it has changed."""

    def __init__(self, log: Path) -> None:
        self._path = log.with_name(NAME)
        self._seen: tuple[int, int] | None = None
        self._value: Mapping[str, Any] | None = None

    def read(self) -> Mapping[str, Any] | None:
        """Its content, None if there is none or it is no JSON object."""
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
    with path.open("rb") as file:
        raw = file.read(LIMIT_BYTES + 1)
    if len(raw) > LIMIT_BYTES:
        return None
    value = json.loads(raw, parse_constant=str)  # a report is JSON, which has no NaN
    return value if isinstance(value, dict) else None
