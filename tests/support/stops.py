"""How long a stop of a stuck server takes, by the limits that stand in the code; seconds."""

from __future__ import annotations

import importlib.util

from deploy.recipe import Profile
from healthcheck.flights import recorder
from healthcheck.service import idle
from healthcheck.signs import writer
from tests.support.documents import ROOT

# A loaded machine's start of an interpreter, of the hook or of py-spy.
INTERPRETER_S = 5.0


def _leftover_s() -> float:
    """docker/launch.py is a script beside a package of its folder's name."""
    spec = importlib.util.spec_from_file_location("launch_of_stops", ROOT / "docker/launch.py")
    assert spec is not None and spec.loader is not None
    launch = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(launch)
    return float(launch.LEFTOVER_S)


def flight_s() -> float:
    """From SIGTERM until the flight is in its place: the signal is held, the archive written."""
    return recorder.HOLD_S + recorder.END_S


def signal_s(profile: Profile) -> float:
    """From SIGTERM to the end: the signal is held, vLLM drains, the last output, flight and signs are
    written."""
    drain_s = float(profile.serve["shutdown-timeout"])
    return flight_s() + drain_s + _leftover_s() + writer.END_S


def hook_s(stalled: bool, profile: Profile) -> float:
    """What preStop takes: of a stalled server one look at it and one at the verdict, else the budget."""
    asked_s = 2 * idle.ASK_S + INTERPRETER_S
    return asked_s if stalled else asked_s + profile.health.drain_budget_s
