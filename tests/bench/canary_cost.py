"""Figure: what an idle server generates for us in a day, simulated and by formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deploy import recipe
from deploy.recipe import Health
from healthcheck.prompts import A_FEW_TOKENS
from healthcheck.verdict import CANARY_JITTER, RECHECK_S
from tests.bench.drive import driver
from tests.bench.figure import Figure, Goal, Strip
from tests.bench.traffic import DAY_S, PROMPT_TOKENS, Server, idle
from tests.bench.watched import QUICK, SHIPPED, budgets

STEPS = 1000
# A canary on an idle server of traffic.py takes this long on average, in seconds, a scored one more.
CANARY_TAKES_S = 0.68
CHECK_TAKES_S = 1.24


def by_formula(health: Health) -> tuple[float, float]:
    """Canaries a day on an idle server, and scored ones: one as soon as the evidence is
    canary_after_s old, scored if the last such one is idle_check_after_s ago.

    The jitter is even around that. Looks come every scrape_interval_s and when a canary is due, but
    no sooner than RECHECK_S after the last one; the canary itself takes its time as well.
    """
    interval, spread = health.scrape_interval_s, CANARY_JITTER * health.canary_after_s
    ages = [health.canary_after_s + spread * (2 * i / STEPS - 1) for i in range(STEPS + 1)]
    sent = [_look_after(age, interval) for age in ages]
    apart = sum(sent) / len(sent) + CANARY_TAKES_S
    # A scored one comes with the first canary that is due after its time: half a canary late.
    canaries = max(health.idle_check_after_s / apart + 0.5, 1.0) - 1
    round_s = canaries * apart + apart + CHECK_TAKES_S - CANARY_TAKES_S
    return DAY_S / round_s * canaries, DAY_S / round_s


def tokens_by_formula(health: Health) -> float:
    """Tokens generated in an idle day."""
    canaries, checks = by_formula(health)
    return canaries * health.canary_tokens + checks * health.gate_tokens


def _look_after(age: float, interval: float) -> float:
    """The first look at that age or later."""
    whole = age // interval * interval
    return whole + max(age - whole, min(RECHECK_S, interval)) if age > whole else age


def simulated(health: Health) -> tuple[int, int, int, int]:
    """Canaries, scored ones, tokens generated and prompt tokens of one idle day, after the gate."""
    made = driver(Server(1, idle()), health)
    while not made.verdict.surfaces.ready:
        made.turn()
    server, canaries, checks = made.server, made.canaries, made.idle_checks
    tokens, prompted = server.tokens_for_us, server.prompt_tokens_for_us
    made.run(server.now + DAY_S)
    return (
        made.canaries - canaries,
        made.idle_checks - checks,
        server.tokens_for_us - tokens,
        server.prompt_tokens_for_us - prompted,
    )


def compared() -> Mapping[str, Health]:
    """The budgets that AMD profiles ship with, the rehearsal's, quick ones."""
    return {
        "default (every AMD profile)": recipe.load().profile("mi355x").health,
        SHIPPED: budgets(SHIPPED),
        QUICK: budgets(QUICK),
    }


def measure() -> Sequence[Figure]:
    """One idle day with each set of budgets."""
    rows, bars, raw, apart = [], [], {}, []
    for name, health in compared().items():
        canaries, checks, tokens, prompted = simulated(health)
        formula = tokens_by_formula(health)
        apart.append(abs(tokens / formula - 1))
        age = f"{health.canary_after_s:.0f} s / {health.scrape_interval_s:.0f} s"
        counts = f"{canaries:,}", f"{checks:,}", f"{tokens:,}", f"{formula:,.0f}", f"{prompted:,}"
        rows.append((name, age, *counts))
        bars.append((name, (float(tokens),)))
        raw[name] = {
            "canaries": canaries,
            "scored": checks,
            "tokens": tokens,
            "prompt_tokens": prompted,
        }
    worst = max(apart)
    return [
        Figure(
            name="canary-cost",
            title="Tokens a day that an idle server generates for canaries",
            how=(
                "One simulated idle day after the gate; a canary is 8 tokens, sent when the last "
                "evidence is older than canary_after_s, and in place of one every "
                "idle_check_after_s (600 s) 64 scored tokens on a prompt of 300. A busy server "
                "gets none: users' own traffic is the evidence."
            ),
            columns=(
                "budgets",
                "canary after / scrape",
                "canaries",
                "scored",
                "tokens generated",
                "by formula",
                f"prompt tokens ({PROMPT_TOKENS} or {A_FEW_TOKENS} each)",
            ),
            rows=tuple(rows),
            plot=Strip("tokens generated in an idle day", "tokens", tuple(bars)),
            goals=(
                Goal(
                    "simulation and formula agree within 5 %", f"{worst:.1%} apart", worst <= 0.05
                ),
            ),
            notes=(
                "Formula: a canary every canary_after_s, up to the look at which it is due, + "
                f"{CANARY_TAKES_S} s of its own, of canary_tokens; the first that is due "
                f"idle_check_after_s after the last scored one is scored, of gate_tokens.",
            ),
            raw=raw,
        )
    ]
