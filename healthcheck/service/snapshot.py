"""What a turn of the loop leaves for who reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from healthcheck.explain.startup import Startup
from healthcheck.flights.model import Flight
from healthcheck.service.cause import Cause
from healthcheck.verdict import Memory, Verdict


@dataclass(frozen=True)
class ProbeResult:
    """The last result of one question, for /metrics of this service."""

    success: bool
    duration_s: float
    at: float


@dataclass(frozen=True)
class Snapshot:
    """What the handlers read: one immutable value, replaced whole by every turn."""

    memory: Memory
    verdict: Verdict
    at: float
    turns: int
    probes: Mapping[str, ProbeResult] = field(default_factory=dict)
    generations: Mapping[str, int] = field(default_factory=dict)  # by step and outcome
    errors: Mapping[str, int] = field(default_factory=dict)  # our own, by where they came up
    cause: Cause | None = None  # from the server's log
    startup: Startup | None = None  # likewise
    provenance: Mapping[str, Any] | None = None  # of the server's image
    flight: Flight | None = None  # the last archive that was kept of a stuck server
