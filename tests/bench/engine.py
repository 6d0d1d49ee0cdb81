"""Figures on the real server: the gate's cost, what serving loses, how soon a stop is found."""

from __future__ import annotations

import random
import statistics
import time

from tests.bench.figure import Figure, Goal, Strip
from tests.bench.svg import number
from tests.bench.watched import QUICK, SHIPPED, Watched, budgets

PAIRS = 5
BLOCK_S = 10.0
AT_ONCE = 4
LOOKS = 100
STOPS = {SHIPPED: 2, QUICK: 3}
IDLE_GOAL_S = 15.0
BUSY_GOAL_S = 10.0
# As shipped, with the signs of its processes.
STOPPED_GOAL_S = 8.0
DEADLOCK_GOAL_S = 15.0
DEADLOCKS = 3


def gate(watched: Watched) -> Figure:
    """What a start costs beyond the server's own."""
    names = list(dict.fromkeys(step for g in watched.gates for step in g.steps))
    steps = [
        (f"{step}, {g.label}", (g.steps[step],))
        for g in watched.gates
        for step in names
        if step in g.steps
    ]
    rows = tuple(
        (
            g.label,
            *(f"{g.steps[n]:.1f} s" if n in g.steps else "-" for n in names),
            f"{g.to_ready_s:.1f} s",
            f"{g.after_first_token_s:.1f} s",
        )
        for g in watched.gates
    )
    return Figure(
        name="gate",
        title="The gate: from the open port to /readyz 200",
        how=(
            "The real server on the CPU. First start: the service waits for the server; again: a "
            "second service on the same server, with a long prompt of 600 tokens instead of "
            "2,500. The warm-up ends "
            "with the first servable token, which any first user would have waited for; what "
            "comes after it is the gate's own cost."
        ),
        columns=("start", *names, "to /readyz 200", "after the first token"),
        rows=rows,
        plot=Strip("time of a step", "s", tuple(steps)),
        notes=(
            "Here kernels are interpreted, at some 20 tokens a second; the gate asks for 64 tokens "
            "a step, 96 in the long one and twice 64 at once. On a GPU the long prompts are of 1,500, "
            "8,000 and 32,000 tokens, the last with 320 to come, and four are asked at once.",
        ),
        raw={g.label: {"steps": g.steps, "to_ready_s": g.to_ready_s} for g in watched.gates},
    )


def throughput(watched: Watched) -> Figure:
    """Tokens a second with the service and without it, in turn."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    costs: dict[bool, list[float]] = {True: [], False: []}
    service = watched.services[SHIPPED]
    interval_s = budgets(SHIPPED).scrape_interval_s
    with watched.only(None):
        look_s = _cost_of_a_look(watched)
    with watched.only(None), watched.load(AT_ONCE, tokens=32):
        time.sleep(BLOCK_S)
        for index in range(PAIRS):
            for on in (True, False) if index % 2 else (False, True):
                service.resume() if on else service.pause()
                time.sleep(0.5)
                rate, cost = _block(watched)
                rates[on].append(rate)
                costs[on].append(cost)
        service.pause()
    ratios = [a / b for a, b in zip(rates[True], rates[False], strict=True)]
    cpu = [b / a for a, b in zip(costs[True], costs[False], strict=True)]
    ratio = sum(rates[True]) / sum(rates[False])
    per_cpu = sum(costs[False]) / sum(costs[True])
    noise = statistics.stdev(ratios) / len(ratios) ** 0.5
    share = look_s / interval_s
    rows = tuple(
        (
            "with the service" if on else "without it",
            f"{number(statistics.mean(rates[on]))} /s",
            f"{min(rates[on]):.1f} to {max(rates[on]):.1f} /s",
            f"{1000 * statistics.mean(costs[on]):.1f} ms",
        )
        for on in (False, True)
    )
    return Figure(
        name="throughput",
        title="Serving with the service and without it",
        how=(
            f"The real server under {AT_ONCE} requests at a time; the service (budgets as shipped) "
            f"takes part or is stopped for {BLOCK_S:.0f} s in turn, {PAIRS} pairs, the order of "
            "each changing. Tokens a second swing with all else that runs on the machine; CPU "
            "time of the server for a token does less."
        ),
        columns=("", "tokens, mean", "spread", "CPU of the server for a token"),
        rows=rows,
        plot=Strip(
            "with the service relative to without it",
            "",
            (("tokens a second", tuple(ratios)), ("tokens a CPU second", tuple(cpu))),
            goal=0.99,
            goal_label="goal 0.99",
        ),
        goals=(
            Goal(
                ">= 0.99 of the tokens a second",
                f"{ratio:.3f}, +- {noise:.3f} (one standard error)",
                _decided(ratio, noise),
            ),
            Goal(
                "<= 1 % of a core of the server for being watched",
                f"{1000 * look_s:.1f} ms a look, {share:.2%} at one every {interval_s:.0f} s",
                share <= 0.01,
            ),
        ),
        notes=(
            f"Tokens a CPU second of the server: {per_cpu:.3f} of those without the service.",
            "The bound that noise does not reach is the CPU of the server for a look (/health and "
            f"/metrics), measured over {LOOKS} looks at the idle server; it is spent in the API "
            "server, not in the engine.",
        ),
        raw={
            "tokens_per_s": {"with": rates[True], "without": rates[False]},
            "cpu_s_per_token": {"with": costs[True], "without": costs[False]},
        },
    )


def _decided(ratio: float, noise: float) -> bool | None:
    """Whether the ratio is at its goal; None where the noise is larger than what is looked for."""
    if ratio + 2 * noise < 0.99:
        return False
    return True if ratio >= 0.99 and noise <= 0.01 else None


def _cost_of_a_look(watched: Watched) -> float:
    """CPU seconds of the server for one /health and one /metrics."""
    before = watched.cpu_s()
    for _ in range(LOOKS):
        watched.server.health()
        watched.counted()
    return (watched.cpu_s() - before) / LOOKS


def _block(watched: Watched) -> tuple[float, float]:
    """Tokens a second, and the server's CPU seconds for each."""
    began, tokens, cpu = time.monotonic(), watched.generated(), watched.cpu_s()
    time.sleep(BLOCK_S)
    made = watched.generated() - tokens
    return made / (time.monotonic() - began), (watched.cpu_s() - cpu) / max(made, 1.0)


def detection(watched: Watched) -> Figure:
    """How soon a SIGSTOPped engine is found."""
    draw = random.Random(20)
    for profile, stops in STOPS.items():
        with watched.only(profile):
            for busy in (False, True):
                for _ in range(stops):
                    watched.time_to_find_a_stop(profile, busy, draw)
    with watched.only(SHIPPED):
        for _ in range(DEADLOCKS):
            watched.time_to_find_a_deadlock(draw)
    seen = {
        f"{label}, {'busy' if busy else 'idle'}": watched.found[(profile, busy)]
        for profile, label in (
            (SHIPPED, "stopped, as shipped"),
            (QUICK, "stopped, quick, HTTP alone"),
        )
        for busy in (False, True)
    } | {"deadlock, as shipped, busy": watched.deadlocks}
    rows: list[tuple[str, ...]] = []
    bars: list[tuple[str, tuple[float, ...]]] = []
    for name, all_of in seen.items():
        times = [t for t in all_of if t is not None]
        median = f"{number(statistics.median(times))} s" if times else "-"
        spread = f"{min(times):.1f} to {max(times):.1f} s" if times else "-"
        rows.append((name, f"{len(times)} of {len(all_of)}", median, spread))
        bars.append((name, tuple(times)))
    return Figure(
        name="detection",
        title="A stopped or hung engine: seconds until /readyz is 503",
        how=(
            "EngineCore of the real server gets SIGSTOP at a random moment, idle or with two "
            "requests at a time, or a draft hangs asleep under them; vLLM's /health stays 200 "
            f"throughout. As shipped: the budgets of the rehearsal's profile ({_budgets(SHIPPED)}), "
            "which are no matter here, and the vital signs of the server's processes. Quick: "
            f"without signs, by a recipe of one's own ({_budgets(QUICK)})."
        ),
        columns=("budgets", "found", "median", "spread"),
        rows=tuple(rows),
        plot=Strip("from the fault to /readyz 503", "s", tuple(bars), DEADLOCK_GOAL_S, "15 s"),
        goals=tuple(
            Goal(f"{name}: <= {goal:.0f} s", f"at most {worst:.1f} s", worst <= goal)
            for (name, all_of), goal in zip(
                seen.items(),
                (STOPPED_GOAL_S, STOPPED_GOAL_S, IDLE_GOAL_S, BUSY_GOAL_S, DEADLOCK_GOAL_S),
                strict=True,
            )
            for worst in (max(1e9 if t is None else t for t in all_of),)
        ),
        raw=dict(seen),
    )


def _budgets(profile: str) -> str:
    health = budgets(profile)
    return (
        f"scrape {health.scrape_interval_s:.0f} s, canary after {health.canary_after_s:.0f} s, "
        f"readiness budget {health.readiness_budget_s:.0f} s"
    )
