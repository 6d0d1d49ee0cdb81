"""Finds the flight that was recorded of the server which wrote a log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from healthcheck.flights.lines import is_of
from healthcheck.flights.model import FOLDER, Flight, FlightError, listed, load, stacks
from healthcheck.flights.waits import waits_for


@dataclass(frozen=True)
class OfLog:
    """A flight, and what each process waited for, a line each."""

    flight: Flight
    waits: tuple[str, ...]


def beside(log: Path) -> OfLog | None:
    """The newest flight of this log's server; None where none lies beside it, or can be read."""
    try:
        for one in listed(log.parent / FOLDER):
            content = load(one.path)
            if is_of(log, content.get("log")):
                return OfLog(one, tuple(waits_for(stack) for stack in stacks(content)))
    except (FlightError, OSError):
        return None
    return None
