"""Vital signs as a writer would give them, of a made-up server: scripted, no real processes."""

from __future__ import annotations

from collections.abc import Mapping

from healthcheck.signs.model import OTHERS, Card, Compiler, Ended, Process, Signs

NAMES = ("APIServer", "EngineCore", "Worker")


def signs(
    at: float,
    *,
    still: Mapping[str, float | None] | float | None = None,
    names: tuple[str, ...] = NAMES,
    states: Mapping[str, tuple[str, float]] | None = None,
    compilers: tuple[Compiler, ...] = (),
    cards: tuple[Card, ...] | None = (),
    ended: tuple[Ended, ...] = (),
    started: float = 0.0,
) -> Signs:
    """Processes by name. `still` is since when they sleep, for all or by name; `states` a letter and
    since when, for those that do not sleep and are not at work. `started`: the server was."""

    def process(pid: int, name: str) -> Process:
        since = still.get(name) if isinstance(still, Mapping) else still
        state, began = (states or {}).get(name, ("R" if since is None else "S", 0.0))
        sleeps = since if state == "S" else None
        return Process(name, pid, state, began, sleeps, 1.0, 8, 1 << 30)

    rest = Process(OTHERS, 0, "S", 0.0, 0.0, 0.0, 0, 0)
    all_of = (*(process(n, name) for n, name in enumerate(names, start=1)), rest)
    return Signs(at, started, "boot", all_of, compilers, cards, ended=ended)


def card(busy_percent: int | None = 0, busy_at: float | None = 0.0, uncorrected: int = 0) -> Card:
    """One GPU, at rest unless said otherwise."""
    return Card("0000:c1:00.0", busy_percent, busy_at, 1, 2, uncorrected, 0, 0)
