"""What the server may be taken for, and which probes each state passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What the server is, as far as we know."""

    LOADING = "LOADING"
    SMOKE = "SMOKE"
    READY = "READY"
    DEGRADED = "DEGRADED"
    NOT_READY = "NOT_READY"
    STALLED = "STALLED"
    DEAD = "DEAD"
    DRAINING = "DRAINING"


@dataclass(frozen=True)
class Surfaces:
    """Which of the probes a state passes: /startupz, /readyz, /livez/engine."""

    startup: bool
    ready: bool
    engine_live: bool


SURFACES: Mapping[State, Surfaces] = {
    State.LOADING: Surfaces(startup=False, ready=False, engine_live=True),
    State.SMOKE: Surfaces(startup=False, ready=False, engine_live=True),
    State.READY: Surfaces(startup=True, ready=True, engine_live=True),
    State.DEGRADED: Surfaces(startup=True, ready=True, engine_live=True),
    State.NOT_READY: Surfaces(startup=True, ready=False, engine_live=True),
    # Not started, but for a server that has passed a gate and is still there: see `surfaces`.
    State.STALLED: Surfaces(startup=False, ready=False, engine_live=False),
    State.DEAD: Surfaces(startup=False, ready=False, engine_live=False),
    State.DRAINING: Surfaces(startup=True, ready=False, engine_live=True),
}
