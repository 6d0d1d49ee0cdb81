"""Figure: thirty simulated days of mixed traffic without a false alarm, and wedges that are found.

The verdict is a pure function, so the days pass without HTTP: see traffic.py for what goes on in
them and drive.py for the loop.
"""

from __future__ import annotations

import os
import random
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from deploy.recipe import Health
from healthcheck.verdict import Reading, State
from tests.bench.drive import Driver, driver
from tests.bench.figure import Figure, Goal, Strip
from tests.bench.svg import number
from tests.bench.traffic import DAY_S, MISS, Kind, Server, Spell, mixed

DAYS = 30
# Days that pass in one piece, with a restart in the midst of each; the pieces share the cores.
PIECE_DAYS = 3
# After an upgrade the gate takes its time: longer than this it is a false NOT_READY.
GATE_ALLOWED_S = 900.0
WEDGES = 60
WEDGE_PATIENCE_S = 1800.0


@dataclass
class Seen:
    """What a stretch of simulated days showed."""

    days: float
    turns: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    longest_stuck_s: dict[str, float] = field(default_factory=dict)
    canaries: int = 0
    idle_checks: int = 0
    needles: int = 0
    needles_missed: int = 0
    restarts: int = 0
    false_alarms: list[str] = field(default_factory=list)

    def plus(self, other: Seen) -> Seen:
        """Both stretches together."""
        kinds = set(self.longest_stuck_s) | set(other.longest_stuck_s)
        return Seen(
            self.days + other.days,
            self.turns + other.turns,
            self.kinds + other.kinds,
            self.states + other.states,
            {
                k: max(self.longest_stuck_s.get(k, 0.0), other.longest_stuck_s.get(k, 0.0))
                for k in kinds
            },
            self.canaries + other.canaries,
            self.idle_checks + other.idle_checks,
            self.needles + other.needles,
            self.needles_missed + other.needles_missed,
            self.restarts + other.restarts,
            self.false_alarms + other.false_alarms,
        )


def simulate(seed: int, days: float, engines: int = 1, health: Health | None = None) -> Seen:
    """Days of mixed traffic from a seed; whatever is said against a working server is false."""
    spells = mixed(random.Random(f"{seed} spells"), restart_every_s=days * DAY_S / 2)
    made = driver(Server(seed, spells, engines), health, jitter_seed=seed)
    seen = Seen(days)
    excused = True  # from the start, and from each restart, to the first READY

    def each(reading: Reading) -> None:
        nonlocal excused
        kind, said = made.server.kind, made.verdict
        if kind is Kind.DOWN:
            seen.restarts += not excused
            excused = True
        elif said.surfaces.ready:
            excused = False
        seen.kinds[kind.value] += 1
        seen.states[said.state.value] += 1
        if not excused:
            stuck = made.memory.stuck_for(reading.at)
            seen.longest_stuck_s[kind.value] = max(seen.longest_stuck_s.get(kind.value, 0.0), stuck)
        allowed = excused and made.server.now - made.server.up_at < GATE_ALLOWED_S
        if made.server.up and not said.surfaces.ready and not allowed:
            seen.false_alarms.append(f"{reading.at:.0f} s, {kind.value}: {said.line}")

    made.run(days * DAY_S, each)
    seen.turns, seen.canaries, seen.idle_checks = made.turns, made.canaries, made.idle_checks
    seen.needles, seen.needles_missed = made.server.needles, made.server.needles_missed
    return seen


@dataclass(frozen=True)
class Wedge:
    """An engine stopped for good: what went on, and the seconds until not ready; None: missed."""

    kind: str
    busy: bool
    seconds: float | None


def find_wedge(seed: int, engines: int = 1, health: Health | None = None) -> Wedge:
    """Wedge a server (one of its engines if it has several) at some moment of its day."""
    draw = random.Random(f"{seed} wedge")
    made = driver(Server(seed, _from_noon(seed, draw), engines), health, jitter_seed=seed)
    _to_ready(made)
    made.run(made.server.now + draw.uniform(600, 7200))
    _to_ready(made)
    server = made.server
    kind, at = server.kind, server.now
    busy = any(e.running + e.waiting for e in server.engines.values())
    server.wedge(draw.choice(list(server.engines)) if engines > 1 else None)
    while made.verdict.surfaces.ready and server.now - at < WEDGE_PATIENCE_S:
        made.turn()
    found = not made.verdict.surfaces.ready
    return Wedge(kind.value, busy, server.now - at if found else None)


def _from_noon(seed: int, draw: random.Random) -> Iterator[Spell]:
    """Mixed traffic that begins at some hour of a day."""
    spells = mixed(random.Random(f"{seed} spells"), restart_every_s=1000 * DAY_S)
    skipped, until = 0.0, draw.uniform(0, DAY_S)
    for spell in spells:
        skipped += spell.seconds
        if skipped > until:
            yield spell


def _to_ready(made: Driver) -> None:
    while not made.verdict.surfaces.ready:
        made.turn()


def _piece(seed: int) -> Seen:
    """Every other piece is of a server with two engines."""
    return simulate(seed, PIECE_DAYS, engines=1 + seed % 2)


def _wedge(seed: int) -> Wedge:
    return find_wedge(seed, engines=1 + seed % 2)


def measure() -> Sequence[Figure]:
    """The thirty days, and the wedges as a control."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        pieces = list(pool.map(_piece, range(DAYS // PIECE_DAYS)))
        wedges = list(pool.map(_wedge, range(WEDGES)))
    seen = pieces[0]
    for piece in pieces[1:]:
        seen = seen.plus(piece)
    return [_figure(seen, wedges)]


def _figure(seen: Seen, wedges: list[Wedge]) -> Figure:
    budget = Health().readiness_budget_s
    found = [w.seconds for w in wedges if w.seconds is not None]
    missed = len(wedges) - len(found)
    ready = seen.states[State.READY.value] + seen.states[State.DEGRADED.value]
    rows = [
        (kind, f"{seen.kinds[kind]:,}", f"{seen.longest_stuck_s.get(kind, 0.0):.0f} s")
        for kind in (k.value for k in Kind)
    ]
    by_work = [
        (f"wedge while {word}, of {len(of)}", tuple(w.seconds for w in of if w.seconds is not None))
        for word, of in (
            ("idle", [w for w in wedges if not w.busy]),
            ("busy", [w for w in wedges if w.busy]),
        )
    ]
    margins = tuple(
        (f"longest pause, {k.value}", (seen.longest_stuck_s.get(k.value, 0.0),))
        for k in Kind
        if k is not Kind.DOWN
    )
    return Figure(
        name="month",
        title=f"{seen.days:.0f} simulated days: what looked stuck, and what was",
        how=(
            f"The verdict over {seen.turns:,} turns of simulated mixed traffic with the default "
            "budgets: quiet nights, busy days, saturation with probe time-outs, lone prefills of "
            "up to 1,028 s, compile stalls of up to 50 s, scrape failures of up to 90 s, bad and "
            f"cut canaries by chance, one needle in {MISS} missed by chance, and upgrades; half of it on a server with two engines. As a "
            f"control, one engine is wedged for good at {len(wedges)} random moments of such days. A pause is what the verdict took for "
            "work without a step; at the budget it is NOT_READY."
        ),
        columns=("traffic", "turns", "longest pause of a working server"),
        rows=(
            *rows,
            *(
                (
                    name,
                    str(len(times)),
                    f"median {number(statistics.median(times))} s" if times else "-",
                )
                for name, times in by_work
            ),
        ),
        plot=Strip(
            "seconds without a step, or until NOT_READY",
            "s",
            (*margins, *by_work),
            goal=budget,
            goal_label=f"readiness budget {budget:.0f} s",
        ),
        goals=(
            Goal("0 turns falsely not ready", str(len(seen.false_alarms)), not seen.false_alarms),
            Goal("every wedge found", f"{len(found)} of {len(wedges)}", missed == 0),
        ),
        notes=(
            f"{ready:,} turns ready, {seen.states[State.DEGRADED.value]:,} of them DEGRADED "
            f"(ready, with a reason); {seen.canaries:,} canaries and {seen.idle_checks:,} scored "
            f"ones; {seen.restarts} restarts, from each of which the gate passed again, with "
            f"{seen.needles_missed} of {seen.needles} needles missed by chance.",
            "A compile stall longer than the readiness budget is NOT_READY by contract: no step "
            "is made and users wait. It is no false alarm, and it is not in these days.",
            "A server whose /metrics fails for longer than canary_after_s and the readiness budget "
            "together, and which answers no canary meanwhile because a lone prefill holds it, is "
            "called NOT_READY although it works. Scrape failures in these days are shorter.",
        ),
        raw={
            "false_alarms": seen.false_alarms[:20],
            "states": dict(seen.states),
            "wedges": [(w.kind, w.busy, w.seconds) for w in wedges],
        },
    )
