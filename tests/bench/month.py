"""Figure: thirty simulated days of mixed traffic without a false alarm, and wedges that are found.

The verdict is a pure function, so the days pass without HTTP: see traffic.py for what goes on in
them and drive.py for the loop.
"""

from __future__ import annotations

import math
import os
import random
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from enum import StrEnum

from deploy.recipe import Health
from healthcheck.verdict import Reading, State
from tests.bench.drive import Driver, driver
from tests.bench.figure import Figure, Goal, Strip
from tests.bench.svg import number
from tests.bench.traffic import DAY_S, MISS, Kind, Server, Spell, Trouble, Wrong, mixed

DAYS = 30
# Days that pass in one piece, with a restart in the midst of each; the pieces share the cores.
PIECE_DAYS = 3
# After a compiler has been at work for longer than the budget: two looks and a generation.
RECOVERY_S = 120.0
# After an upgrade the gate takes its time: longer than this it is a false NOT_READY.
GATE_ALLOWED_S = 900.0
WEDGES = 50
# What signs are for: an engine that is stopped, and one that sleeps beside its work, in seconds.
STOPPED_GOAL_S = 8.0
DEADLOCK_GOAL_S = 15.0
WEDGE_PATIENCE_S = 1800.0
FAULT_MOMENTS = 12
FAULT_PATIENCE_S = 6 * 3600.0


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
    pauses: int = 0
    by_contract: int = 0  # times not ready beside a compiler that is at work longer than the budget
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
            self.pauses + other.pauses,
            self.by_contract + other.by_contract,
            self.false_alarms + other.false_alarms,
        )


def simulate(
    seed: int, days: float, engines: int = 1, health: Health | None = None, signs: bool = True
) -> Seen:
    """Days of mixed traffic from a seed; whatever is said against a working server is false, but
    for one that has made no step for the readiness budget, whatever it waits for."""
    spells = mixed(random.Random(f"{seed} spells"), restart_every_s=days * DAY_S / 2)
    made = driver(Server(seed, spells, engines), health, seed, signs)
    made.pauses = Trouble(random.Random(f"{seed} pauses"), a_day=4, least_s=30, most_s=3600)
    seen = Seen(days)
    excused = True  # from the start, and from each restart, to the first READY
    stood_at = -math.inf  # last without a step for the budget

    def each(reading: Reading) -> None:
        nonlocal excused, stood_at
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
        if made.server.standing_s >= made.health.readiness_budget_s:
            seen.by_contract += reading.at - stood_at > RECOVERY_S
            stood_at = reading.at
        allowed = excused and made.server.now - made.server.up_at < GATE_ALLOWED_S
        allowed = allowed or reading.at - stood_at <= RECOVERY_S
        if made.server.up and not said.surfaces.ready and not allowed:
            seen.false_alarms.append(f"{reading.at:.0f} s, {kind.value}: {said.line}")

    made.run(days * DAY_S, each)
    seen.turns, seen.canaries, seen.idle_checks = made.turns, made.canaries, made.idle_checks
    seen.pauses = made.paused
    seen.needles, seen.needles_missed = made.server.needles, made.server.needles_missed
    return seen


class How(StrEnum):
    """What a wedged engine's processes do, and whether that is seen."""

    STOPPED = "stopped"
    DEADLOCK = "asleep"
    UNSEEN = "without signs"


WEDGED = {
    How.STOPPED: "stopped",
    How.DEADLOCK: "deadlock",
    How.UNSEEN: "wedge without signs",
}


@dataclass(frozen=True)
class Wedge:
    """An engine stopped for good: how, what went on, and the seconds until not ready; None: missed."""

    how: How
    kind: str
    busy: bool
    seconds: float | None


def find_wedge(
    seed: int, engines: int = 1, health: Health | None = None, how: How = How.UNSEEN
) -> Wedge:
    """Wedge a server (one of its engines if it has several) at some moment of its day."""
    draw = random.Random(f"{seed} wedge")
    spells = _from_noon(seed, draw)
    made = _at_some_moment(seed, draw, spells, engines, health, how is not How.UNSEEN)
    server = made.server
    kind = server.kind
    busy = any(e.running + e.waiting for e in server.engines.values())
    server.signs_fail = False
    after_s = draw.uniform(0, made.health.scrape_interval_s)
    which = draw.choice(list(server.engines)) if engines > 1 else None
    server.wedge(which, stopped=how is How.STOPPED, after_s=after_s)
    found = _until_out(made, WEDGE_PATIENCE_S)
    return Wedge(how, kind.value, busy, None if found is None else found - after_s)


def _at_some_moment(
    seed: int,
    draw: random.Random,
    spells: Iterator[Spell],
    engines: int,
    health: Health | None,
    signs: bool = True,
) -> Driver:
    made = driver(Server(seed, spells, engines), health, seed, signs)
    _to_ready(made)
    made.run(made.server.now + draw.uniform(600, 7200))
    _to_ready(made)
    return made


def _until_out(made: Driver, patience_s: float) -> float | None:
    """Seconds until the server is out of rotation, None if it is not by then."""
    server, at = made.server, made.server.now
    while made.verdict.surfaces.ready and server.now - at < patience_s:
        made.turn()
    return None if made.verdict.surfaces.ready else made.memory.at - at


@dataclass(frozen=True)
class Fault:
    """What goes wrong for good, on how many engines' server, under which traffic (None: mixed)."""

    name: str
    wrong: Wrong
    engines: int = 1
    under: Kind | None = None


FAULTS = (
    Fault("one of 8 engines writes garbage", Wrong(garbage={"3": 1.0}), engines=8),
    Fault("one of 8 engines turns greedy", Wrong(greedy={"3"}), engines=8),
    Fault("every second answer is garbage", Wrong(garbage={"0": 0.5})),
    Fault("every third answer is garbage", Wrong(garbage={"0": 1 / 3})),
    Fault("garbage of a server that stays saturated", Wrong(garbage={"0": 1.0}), 1, Kind.SATURATED),
    Fault("answers never come, their tokens are made", Wrong(lost=True)),
    Fault("every answer is one of before", Wrong(replays=True)),
)


def find_fault(fault: Fault, seed: int) -> float | None:
    """Let a server go wrong at some moment; seconds until it is out of rotation, None: missed."""
    draw = random.Random(f"{seed} {fault.name}")
    spells = _from_noon(seed, draw) if fault.under is None else _only(fault.under)
    made = _at_some_moment(seed, draw, spells, fault.engines, None)
    made.server.wrong = deepcopy(fault.wrong)
    return _until_out(made, FAULT_PATIENCE_S)


def _only(kind: Kind) -> Iterator[Spell]:
    """A quiet start, and then nothing else."""
    yield Spell(Kind.IDLE, 600)
    while True:
        yield Spell(kind, DAY_S)


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
    """Every other piece is of a server with two engines, one in five of one without signs."""
    return simulate(seed, PIECE_DAYS, engines=1 + seed % 2, signs=seed % 5 != 4)


def _wedge(case: tuple[How, int]) -> Wedge:
    """Without signs half of the servers have two engines; with them, one whose cards are seen."""
    how, seed = case
    if how is How.UNSEEN:
        return find_wedge(seed, engines=1 + seed % 2)
    return find_wedge(seed // 2 * 4 + seed % 2, how=how)


def _fault(case: tuple[int, int]) -> float | None:
    index, seed = case
    return find_fault(FAULTS[index], seed)


def measure() -> Sequence[Figure]:
    """The thirty days, with the wedges as a control."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        pieces = list(pool.map(_piece, range(DAYS // PIECE_DAYS)))
        cases = [(how, seed) for how in How for seed in range(WEDGES)]
        wedges = list(pool.map(_wedge, cases))
    seen = pieces[0]
    for piece in pieces[1:]:
        seen = seen.plus(piece)
    return [_figure(seen, wedges)]


def measure_faults() -> Sequence[Figure]:
    """What else goes wrong for good."""
    cases = [(i, seed) for i in range(len(FAULTS)) for seed in range(FAULT_MOMENTS)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(_fault, cases))
    times: dict[str, list[float | None]] = {}
    for (index, _), seconds in zip(cases, found, strict=True):
        times.setdefault(FAULTS[index].name, []).append(seconds)
    return [_faults(times)]


def _faults(times: dict[str, list[float | None]]) -> Figure:
    seen = {name: tuple(t for t in of if t is not None) for name, of in times.items()}
    missed = sum(len(of) - len(seen[name]) for name, of in times.items())
    return Figure(
        name="faults",
        title="What goes wrong while /health and the counters look well: seconds until /readyz is 503",
        how=(
            f"Each fault begins at {FAULT_MOMENTS} random moments of such days, and is given "
            f"{FAULT_PATIENCE_S / 3600:.0f} hours. With several engines only one of them is bad."
        ),
        columns=("fault", "found", "median", "longest"),
        rows=tuple(
            (
                name,
                f"{len(found)} of {len(times[name])}",
                f"{number(statistics.median(found))} s" if found else "-",
                f"{number(max(found))} s" if found else "-",
            )
            for name, found in seen.items()
        ),
        plot=Strip("seconds until NOT_READY", "s", tuple(seen.items())),
        goals=(Goal("every one found", f"{missed} missed", missed == 0),),
        notes=(
            "An idle server is read every canary_after_s, a busy one every evidence_max_age_s, a "
            "saturated one every fourth of that; a greedy sampler needs several canaries, which "
            "together are beyond belief.",
        ),
        raw=times,
    )


def _nine_in_ten(times: Sequence[float]) -> float:
    """The time within which nine in ten of them are."""
    return sorted(times)[math.ceil(0.9 * len(times)) - 1] if times else math.inf


def _figure(seen: Seen, wedges: list[Wedge]) -> Figure:
    budget = Health().readiness_budget_s
    found = [w.seconds for w in wedges if w.seconds is not None]
    missed = len(wedges) - len(found)
    ready = seen.states[State.READY.value] + seen.states[State.DEGRADED.value]
    rows = [
        (kind, f"{seen.kinds[kind]:,}", f"{seen.longest_stuck_s.get(kind, 0.0):.0f} s")
        for kind in (k.value for k in Kind)
    ]
    times = {
        (how, busy): tuple(
            math.inf if w.seconds is None else w.seconds
            for w in wedges
            if w.how is how and w.busy is busy
        )
        for how in How
        for busy in (False, True)
    }
    by_work = [
        (
            f"{WEDGED[how]}, {'busy' if busy else 'idle'}, of {len(of)}",
            tuple(t for t in of if t < math.inf),
        )
        for (how, busy), of in times.items()
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
            "up to 1,028 s, compile stalls of up to 50 s, compilers of up to 250 s, processes swapped "
            "out for up to 50 s, signs that fail for up to half an hour, scrape failures of up to 90 s, bad and "
            "cut canaries by chance, an API process that is late while it is saturated, /metrics from "
            f"a cache for up to 15 minutes, {seen.pauses} pauses of the service itself of up to an hour, one needle and one sum in {MISS} missed by chance, and upgrades; half of it on a server with two engines, a fifth on one without signs. As a "
            f"control, one engine is wedged for good at {len(wedges)} random moments of such days. A pause is what the verdict took for "
            "work without a step; at the budget it is NOT_READY."
        ),
        columns=("traffic", "turns", "longest pause of a working server"),
        rows=(
            *rows,
            *(
                (
                    name,
                    str(len(of)),
                    f"median {number(statistics.median(of))} s, nine in ten within "
                    f"{number(_nine_in_ten(of))} s, longest {number(max(of))} s"
                    if of
                    else "-",
                )
                for name, of in by_work
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
            *(
                Goal(
                    f"{WEDGED[how]}, {'busy' if busy else 'idle'}: nine in ten <= {goal:.0f} s",
                    f"{number(_nine_in_ten(times[how, busy]))} s",
                    _nine_in_ten(times[how, busy]) <= goal,
                )
                for how, busy, goal in (
                    (How.STOPPED, False, STOPPED_GOAL_S),
                    (How.STOPPED, True, STOPPED_GOAL_S),
                    (How.DEADLOCK, True, DEADLOCK_GOAL_S),
                )
            ),
        ),
        notes=(
            f"{ready:,} turns ready, {seen.states[State.DEGRADED.value]:,} of them DEGRADED "
            f"(ready, with a reason); {seen.canaries:,} canaries and {seen.idle_checks:,} scored "
            f"ones; {seen.restarts} restarts, from each of which the gate passed again, with "
            f"{seen.needles_missed} of {seen.needles} needles missed by chance.",
            "Whatever makes no step for the readiness budget is NOT_READY by contract, for users "
            f"wait: in these days {seen.by_contract} compilers that were at work for longer. That is "
            "no false alarm, and no restart: it is ready again once it moves.",
            "With signs: servers of one engine whose cards are seen. Where a card's load cannot be "
            "read a deadlock takes as long as without signs, and so does one while /metrics fails or "
            "the API process is late, which are the longest of these.",
            "A server whose /metrics fails for longer than evidence_max_age_s, and which answers no "
            "canary meanwhile because a lone prefill holds it, is called NOT_READY although it "
            "works. Scrape failures in these days are shorter. Nor are expositions from a cache "
            "laid over lone prefills, stalls, saturation and the two minutes after a stall: who is "
            "out by contract stays out while /metrics does not count its answers.",
        ),
        raw={
            "false_alarms": seen.false_alarms[:20],
            "states": dict(seen.states),
            "wedges": [(w.how.value, w.kind, w.busy, w.seconds) for w in wedges],
        },
    )
