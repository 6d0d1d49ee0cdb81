"""The newest archive beside a log, for who shows that there is one."""

from __future__ import annotations

from pathlib import Path

from healthcheck.flights.model import FOLDER, Flight, listed
from healthcheck.worker import Repeated, Worker

PAUSE_S = 5.0  # between two looks at the archives


class Flights:
    """Looks for it in the worker's thread."""

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
