"""Figure: the same faults judged by other projects' probes and by this service.

Faults that the real server can show are shown on it; the rest run on a scripted server in simulated
time and say so. The emulations are those of peers.py.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deploy.rehearsal.models import NAN_WEIGHTS
from healthcheck.signs.model import Signs
from healthcheck.verdict import State
from tests.bench.figure import Figure, Goal, Matrix
from tests.bench.peers import COUNTERS_BUDGET_S, Peer, RealView, ScriptedView, View, peers
from tests.bench.watched import (
    FOUND_DEADLINE_S,
    QUICK,
    SHIPPED,
    Service,
    Watched,
    quick_recipe,
    service,
)
from tests.support.made_signs import signs
from tests.support.rehearsal_server import MODEL, WORKER, RehearsalServer
from tests.support.scripted_server import ScriptedServer, error, scripted_server
from tests.support.simulation import Simulation

OURS, OURS_QUICK = "this service", "this service, quick"
OURS_OUTSIDE = "this service, without signs"
# From the fault to the first bad verdict, in seconds.
SPOILED_GOAL_S = 120.0
KILLED_GOAL_S = 8.0
SCRIPTED, REAL = "scripted", "real"
WARM_S = 15.0
# How long a fault stands: long enough for the slowest probe that can see it at all. Without work
# the counters say nothing, however long one waits.
BUSY_LIMIT_S = COUNTERS_BUDGET_S + 20.0
IDLE_LIMIT_S = 45.0
NAN_S = 30.0
START_S = 30.0
NOT_READY = frozenset(s for s in State if s is not State.READY)


@dataclass
class Case:
    """One fault, or one thing that is no fault, and what each judge made of it.

    `said`: seconds from its begin to the first bad verdict, None for none; `refused`: never let in.
    """

    name: str
    where: str
    fault: bool
    said: dict[str, float | None] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    told: str = ""  # what this service said of it

    def cell(self, judge: str) -> tuple[str, str]:
        """The word and the mood of a judge's cell."""
        if judge in self.refused:
            return "refused at start", "good" if self.fault else "bad"
        if judge not in self.said:
            return "-", "plain"
        seconds = self.said[judge]
        if self.fault:
            return ("missed", "bad") if seconds is None else (f"{seconds:.1f} s", "good")
        return ("quiet", "good") if seconds is None else (f"false, {seconds:.0f} s", "bad")


# --- on the real server ---------------------------------------------------------------------------


def on_the_real_server(watched: Watched) -> list[Case]:
    """Stops, idle and busy, and the kill of a worker, which ends the server."""
    idle = Case("engine stopped, idle", REAL, True)
    busy = Case("engine stopped, busy", REAL, True)
    for case in (idle, busy):
        for group in _groups():
            _judge_a_stop(watched, case, group)
        for profile, name in ((SHIPPED, OURS), (QUICK, OURS_QUICK)):
            is_busy = case is busy
            if not watched.found.get((profile, is_busy)):
                with watched.only(profile):
                    watched.time_to_find_a_stop(profile, is_busy, random.Random(3))
            case.said[name] = _middle(watched.found[(profile, is_busy)])
    return [idle, busy, _kill(watched)]


def _groups() -> Iterator[list[Peer]]:
    """The canary that waits for idleness apart from the probe that never leaves any."""
    health, greedy, canary, counters = peers()
    yield [health, greedy, counters]
    yield [canary]


def _middle(times: list[float | None]) -> float | None:
    found = sorted(t for t in times if t is not None)
    return found[len(found) // 2] if len(found) == len(times) else None


def _judge_a_stop(watched: Watched, case: Case, group: list[Peer]) -> None:
    view = RealView(watched.server.url, MODEL)
    busy = case.name.endswith("busy")
    limit_s = BUSY_LIMIT_S if busy else IDLE_LIMIT_S
    with watched.only(None):
        load = watched.load(2) if busy else contextlib.nullcontext()
        with load:
            _watch(group, view, WARM_S)
            if busy:
                watched.wait_for_work()
            with watched.stopped_engine() as at:
                case.said |= _watch(group, view, limit_s, at)
        _watch([peers()[0]], view, 2)


def _kill(watched: Watched) -> Case:
    case = Case("worker killed", REAL, True)
    everyone, view = peers(), RealView(watched.server.url, MODEL)
    _watch(everyone, view, WARM_S)
    os.kill(watched.server.pid_of(WORKER), signal.SIGKILL)
    at = time.monotonic()
    ours = {OURS: watched.services[SHIPPED], OURS_QUICK: watched.services[QUICK]}
    case.said = _watch(everyone, view, FOUND_DEADLINE_S, at, ours)
    case.told = watched.services[SHIPPED].line()
    return case


def _watch(
    group: list[Peer],
    view: View,
    seconds: float,
    since: float | None = None,
    ours: dict[str, Service] | None = None,
) -> dict[str, float | None]:
    """Let probes judge for some seconds, or until all say bad: the seconds that each took."""
    since, ends = since or time.monotonic(), time.monotonic() + seconds
    said: dict[str, float | None] = {p.name: None for p in group}
    said |= dict.fromkeys(ours or {})
    due = time.monotonic()
    while time.monotonic() < ends and None in said.values():
        for name, watching in (ours or {}).items():
            if said[name] is None and not watching.ready():
                said[name] = time.monotonic() - since
        if time.monotonic() >= due:
            due += 1.0
            for peer in group:
                healthy = peer.turn(time.monotonic(), view)
                if not healthy and said[peer.name] is None:
                    said[peer.name] = time.monotonic() - since
        time.sleep(0.05)
    return said


def nan_weights() -> Case:
    """A real server whose weights are NaN, from its start."""
    case = Case("NaN weights", REAL, True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = RehearsalServer(folder / "server.log", fault=NAN_WEIGHTS)
        stack.enter_context(server)
        quick = str(quick_recipe(folder))
        ours = {
            OURS: stack.enter_context(service(SHIPPED, server.url)),
            OURS_QUICK: stack.enter_context(service(QUICK, server.url, DSPARK_RECIPE=quick)),
        }
        case.said = _watch(peers(), RealView(server.url, MODEL), NAN_S)
        for name, watching in ours.items():
            if watching.wait_for("numerics", FOUND_DEADLINE_S):
                case.refused[name] = watching.line()
            else:
                case.said[name] = None
    return case


# --- on a scripted server, in simulated time ------------------------------------------------------

Step = Callable[[ScriptedServer, float], None]


def idle(server: ScriptedServer, _: float) -> None:
    """Nobody but us."""
    server.idle()


def traffic(server: ScriptedServer, at: float) -> None:
    """Five minutes of work, five of none."""
    if at % 600 < 300:
        server.serve_traffic(tokens=100, drafts=32 if server.drafting else 0)
    else:
        server.idle()


def lone_prefill(server: ScriptedServer, at: float) -> None:
    """900k tokens in 1,028 s: one gauge moves every few seconds, all else waits behind it."""
    server.hung = at < 1028
    engine = server.engines["0"]
    engine.running = 1 if server.hung else 0
    engine.cache_usage = 0.0005 * (at // 9)


def saturated(server: ScriptedServer, at: float) -> None:
    """Full for 15 minutes: tokens flow, a new request waits."""
    server.hung = at < 900
    engine = server.engines["0"]
    engine.waiting = 200 if server.hung else 0
    if server.hung:
        server.serve_traffic(tokens=100, drafts=30)
    else:
        server.idle()


def compile_stall(server: ScriptedServer, at: float) -> None:
    """A kernel compiles for 50 s in the middle of work, then work goes on."""
    server.hung = at < 50
    if at >= 50:
        traffic(server, at)


def make_greedy(server: ScriptedServer) -> None:
    """Sampling asks are answered by argmax from now on."""
    server.greedy = True


def stop_drafting(server: ScriptedServer) -> None:
    """No draft any more, for whatever reason."""
    server.drafting = False


def spoil(server: ScriptedServer) -> None:
    """Every completion with logprobs is refused, as vLLM does with NaN."""
    body = "Out of range float values are not JSON compliant"

    def reply(payload: object) -> tuple[int, bytes]:
        assert isinstance(payload, dict)
        if payload["temperature"] == 0 and "return_token_ids" not in payload:
            return server.complete(payload)  # a greedy token has no NaN to show
        return error(400, body)

    server.on_completion = reply


@dataclass(frozen=True)
class Scripted:
    """A case on a scripted server: what is done to it, when, and what goes on around it."""

    name: str
    fault: bool
    change: Callable[[ScriptedServer], None]
    step: Step = traffic
    from_start: bool = False
    seconds: float = 1800.0


SCRIPTS = (
    Scripted("greedy sampler, from the start", True, make_greedy, from_start=True),
    Scripted("greedy sampler, while serving", True, make_greedy),
    Scripted("greedy sampler, while idle", True, make_greedy, idle),
    Scripted("draft dead, from the start", True, stop_drafting, from_start=True),
    Scripted("draft dead, while serving", True, stop_drafting),
    Scripted("NaN, while serving", True, spoil),
    Scripted("NaN, while idle", True, spoil, idle),
    Scripted("lone prefill of 1,028 s", False, lambda _: None, lone_prefill, seconds=1200),
    Scripted("saturated for 15 minutes", False, lambda _: None, saturated, seconds=1200),
    Scripted("compile stall of 50 s", False, lambda _: None, compile_stall, seconds=600),
)
# What begins while it serves and no counter shows.
SPOILED = tuple(s.name for s in SCRIPTS if s.change in (make_greedy, spoil) and not s.from_start)


def scripted(script: Scripted) -> Case:
    """Play a case in simulated seconds, once for each judge: a probe's token is work, too, and
    would pass for a user's."""
    case = Case(script.name, SCRIPTED, script.fault)
    for peer in peers():
        with scripted_server() as server:
            script.change(server)
            case.said[peer.name] = _play(script, peer, server)
    for judge, seeing in ((OURS, True), (OURS_OUTSIDE, False)):
        with scripted_server() as server:
            _play_ours(case, judge, script, server, seeing)
    return case


def _signs(server: ScriptedServer) -> Callable[[float], Signs]:
    """What a writer beside the scripted server would see: who has work burns CPU, who has none
    sleeps; what hangs compiles or waits for its card, scripted as CPU."""

    def seen(now: float) -> Signs:
        busy = any(e.running + e.waiting for e in server.engines.values())
        return signs(now, still=None if busy or server.hung else now - 10)

    return seen


def _play(script: Scripted, peer: Peer, server: ScriptedServer) -> float | None:
    view = ScriptedView(server)
    for second in range(int(script.seconds)):
        script.step(server, float(second))
        if not peer.turn(float(second), view):
            return float(second)
    return None


def _play_ours(
    case: Case, judge: str, script: Scripted, server: ScriptedServer, seeing: bool
) -> None:
    simulation = Simulation(server)
    if seeing:
        simulation.signs = _signs(server)
    if script.from_start:
        script.change(server)
        simulation.run(START_S)
    else:
        simulation.to_ready()
        script.change(server)
        began = simulation.now
        # DEGRADED counts as told: it names what is wrong, and by default keeps on serving.
        simulation.run(script.seconds, lambda at: script.step(server, at), until=NOT_READY)
        found = simulation.state in NOT_READY
        case.said[judge] = simulation.now - began if found else None
        return
    if simulation.loop.snapshot.verdict.surfaces.ready:
        case.said[judge] = None
    else:
        case.refused[judge] = simulation.loop.snapshot.verdict.line


# --- the figure -----------------------------------------------------------------------------------


def measure_scripted() -> Sequence[Figure]:
    """The scripted cases alone."""
    cases = [scripted(s) for s in SCRIPTS]
    columns = [p.name for p in peers()] + [OURS, OURS_OUTSIDE]
    spoiled = [c for c in cases if c.name in SPOILED]
    worst = max(c.said[OURS] if c.said[OURS] is not None else 1e9 for c in spoiled)
    return [
        _figure(
            "peers-scripted",
            "Other probes and this service: faults and false alarms in simulated time",
            "A scripted server in simulated time, with the default budgets of this service; faults "
            "that begin while it serves are judged for half an hour of five minutes of work and "
            "five of none. Seconds to the first bad verdict; of this service to the first that is "
            "not READY: a dead draft is DEGRADED unless the profile asks for more.",
            cases,
            columns,
            [
                Goal(
                    f"NaN and a greedy sampler that begin while serving <= {SPOILED_GOAL_S:.0f} s",
                    f"at most {worst:.1f} s",
                    worst <= SPOILED_GOAL_S,
                )
            ],
        )
    ]


def measure_real(watched: Watched) -> Sequence[Figure]:
    """The cases of the real server. Ends the server."""
    cases = on_the_real_server(watched)
    killed = cases[-1]
    found = killed.said[OURS]
    goal = Goal(
        f"a killed worker within {KILLED_GOAL_S:.0f} s, with its signal",
        f"{'never' if found is None else f'{found:.1f} s'}, `{killed.told[:120]}`",
        found is not None and found <= KILLED_GOAL_S and "SIGKILL" in killed.told,
    )
    watched.server.stop()
    for watching in watched.services.values():
        watching.pause()
    cases.append(nan_weights())
    columns = [p.name for p in peers()] + [OURS, OURS_QUICK]
    return [
        _figure(
            "peers-real",
            "Other probes and this service on the same real server",
            "vLLM 0.27.1 on the CPU with the fault of each row; seconds to the first bad verdict "
            f"(missed: none in {BUSY_LIMIT_S:.0f} s busy, {IDLE_LIMIT_S:.0f} s idle). This service "
            "as shipped, with the vital signs of the server's processes, and with quick budgets and "
            "HTTP alone.",
            cases,
            columns,
            [goal],
        )
    ]


def _figure(
    name: str,
    title: str,
    how: str,
    cases: list[Case],
    columns: list[str],
    more: Sequence[Goal] = (),
) -> Figure:
    rows = tuple((c.name, tuple(c.cell(judge) for judge in columns)) for c in cases)
    faults, others = [c for c in cases if c.fault], [c for c in cases if not c.fault]
    summary = tuple(
        (
            judge,
            str(sum(c.cell(judge)[0] == "missed" for c in faults)) + f" of {len(faults)}",
            str(sum(c.cell(judge)[1] == "bad" for c in others)) + f" of {len(others)}"
            if others
            else "-",
        )
        for judge in columns
    )
    missed = [c.name for c in faults if c.cell(OURS)[0] == "missed"]
    false = [c.name for c in others if c.cell(OURS)[1] == "bad"]
    goals = [Goal("no fault missed by this service", ", ".join(missed) or "none", not missed)]
    if others:
        goals.append(Goal("no false alarm of this service", ", ".join(false) or "none", not false))
    refusals = tuple(
        f"{c.name}: this service says `{c.refused[OURS][:160]}`" for c in cases if OURS in c.refused
    )
    cells = tuple(
        (f"{c.name} ({c.where})", *(c.cell(judge)[0] for judge in columns)) for c in cases
    )
    return Figure(
        name=name,
        title=title,
        how=how + " The other probes are emulations from their documented parameters "
        "(tests/bench/peers.py: vLLM 0.27.1 /health; SGLang 0.5 /health_generate; NVIDIA Dynamo 1.x "
        "canary; gonka's counter progress), asked every second, the first bad verdict counting.",
        columns=("case", *columns),
        rows=(
            *cells,
            ("**faults missed**", *(s[1] for s in summary)),
            ("**false alarms**", *(s[2] for s in summary)),
        ),
        plot=Matrix(tuple(columns), rows),
        goals=(*goals, *more),
        notes=refusals,
        raw={c.name: {"said": c.said, "refused": c.refused} for c in cases},
    )
