"""What a turn of the loop leaves for who reads it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from healthcheck import verdict
from healthcheck.client import Client, exposition, listing
from healthcheck.client.answers import Answer, Failure
from healthcheck.client.cancel import Cancel
from healthcheck.explain.startup import Startup
from healthcheck.flights.model import Flight
from healthcheck.flights.newest import Flights
from healthcheck.judge import Outcome, Step
from healthcheck.reasons import Note
from healthcheck.service.cause import Cause, Log
from healthcheck.service.generate import Generator
from healthcheck.service.provenance import Provenance
from healthcheck.service.voice import to_stderr
from healthcheck.signs.model import Signs
from healthcheck.verdict import (
    RECHECK_S,
    SURFACES,
    Generation,
    Memory,
    Outstanding,
    Policy,
    Reading,
    State,
    Verdict,
    Want,
)
from healthcheck.words import fault, one_line
from healthcheck.worker import Worker
from healthcheck.service.runner import Runner, ThreadRunner

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
