"""Figure: what an idle server generates for us in a day, simulated and by formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deploy import recipe
from deploy.recipe import Health
from healthcheck.verdict import CANARY_JITTER, RECHECK_S
from tests.bench.drive import driver
from tests.bench.figure import Figure, Goal, Strip
from tests.bench.traffic import DAY_S, PROMPT_TOKENS, Server, idle
from tests.bench.watched import QUICK, SHIPPED, budgets

STEPS = 1000
# A canary on an idle server of traffic.py takes this long on average, in seconds.
CANARY_TAKES_S = 0.68


def by_formula(health: Health) -> float:
    """Canaries a day on an idle server: one as soon as the evidence is canary_after_s old.

    The jitter is even around that. Looks come every scrape_interval_s and when a canary is due, but
    no sooner than RECHECK_S after the last one; the canary itself takes its time as well.
    """
    interval, spread = health.scrape_interval_s, CANARY_JITTER * health.canary_after_s
    ages = [health.canary_after_s + spread * (2 * i / STEPS - 1) for i in range(STEPS + 1)]
    sent = [_look_after(age, interval) for age in ages]
    return DAY_S / (sum(sent) / len(sent) + CANARY_TAKES_S)


def _look_after(age: float, interval: float) -> float:
    """The first look at that age or later."""
    whole = age // interval * interval
    return whole + max(age - whole, min(RECHECK_S, interval)) if age > whole else age


def simulated(health: Health) -> tuple[int, int, int]:
    """Canaries, tokens generated and prompt tokens of one idle day, after the gate."""
    made = driver(Server(1, idle()), health)
    while not made.verdict.surfaces.ready:
        made.turn()
    server, before = made.server, made.canaries
    tokens, prompted = server.tokens_for_us, server.prompt_tokens_for_us
    made.run(server.now + DAY_S)
    return (
        made.canaries - before,
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
        canaries, tokens, prompted = simulated(health)
        formula = by_formula(health) * health.canary_tokens
        apart.append(abs(tokens / formula - 1))
        age = f"{health.canary_after_s:.0f} s / {health.scrape_interval_s:.0f} s"
        rows.append((name, age, f"{canaries:,}", f"{tokens:,}", f"{formula:,.0f}", f"{prompted:,}"))
        bars.append((name, (float(tokens),)))
        raw[name] = {"canaries": canaries, "tokens": tokens, "prompt_tokens": prompted}
    worst = max(apart)
    return [
        Figure(
            name="canary-cost",
            title="Tokens a day that an idle server generates for canaries",
            how=(
                "One simulated idle day after the gate; a canary is 8 tokens, sent when the last "
                "evidence is older than canary_after_s. A busy server gets none: users' own "
                "traffic is the evidence."
            ),
            columns=(
                "budgets",
                "canary after / scrape",
                "canaries",
                "tokens generated",
                "by formula",
                f"prompt tokens ({PROMPT_TOKENS} each)",
            ),
            rows=tuple(rows),
            plot=Strip("tokens generated in an idle day", "tokens", tuple(bars)),
            goals=(
                Goal(
                    "simulation and formula agree within 5 %", f"{worst:.1%} apart", worst <= 0.05
                ),
            ),
            notes=(
                f"Formula: 86,400 s / (canary_after_s, up to the look at which it is due, + "
                f"{CANARY_TAKES_S} s of a canary) x canary_tokens.",
            ),
            raw=raw,
        )
    ]
