"""Figure: what an idle server generates for us in a day, simulated and by formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from deploy import recipe
from deploy.recipe import Health
from healthcheck.judge.prompts import A_FEW_TOKENS
from healthcheck.verdict import CANARY_JITTER, RECHECK_S, TEXT_AGES, TEXT_LENGTHS
from tests.bench.drive import Driver, driver
from tests.bench.figure import Figure, Goal, Strip
from tests.bench.traffic import DAY_S, PROMPT_TOKENS, Server, idle
from tests.bench.watched import QUICK, SHIPPED, budgets

STEPS = 1000
# A canary on an idle server of traffic.py takes this long on average, in seconds, a scored one more.
CANARY_TAKES_S = 0.68
CHECK_TAKES_S = 1.24


@dataclass(frozen=True)
class Case:
    """Budgets, and whether the signs of the server's processes are seen."""

    health: Health
    signs: bool = True

    @property
    def age_s(self) -> float:
        """The age of evidence at which a canary is sent, without its jitter."""
        return self.health.canary_after_s * (TEXT_AGES if self.signs else 1)

    @property
    def tokens(self) -> int:
        """Of a canary."""
        return self.health.canary_tokens * (TEXT_LENGTHS if self.signs else 1)


def by_formula(case: Case) -> tuple[float, float]:
    """Canaries a day on an idle server, and scored ones: one as soon as the evidence is
    canary_after_s old, with signs twice that, scored if the last such one is idle_check_after_s ago.

    The jitter is even around that. Looks come every scrape_interval_s and when a canary is due, but
    no sooner than RECHECK_S after the last one; the canary itself takes its time as well.
    """
    health, interval, spread = (
        case.health,
        case.health.scrape_interval_s,
        CANARY_JITTER * case.age_s,
    )
    ages = [case.age_s + spread * (2 * i / STEPS - 1) for i in range(STEPS + 1)]
    sent = [_look_after(age, interval) for age in ages]
    apart = sum(sent) / len(sent) + CANARY_TAKES_S
    # A scored one comes with the first canary that is due after its time: half a canary late.
    canaries = max(health.idle_check_after_s / apart + 0.5, 1.0) - 1
    round_s = canaries * apart + apart + CHECK_TAKES_S - CANARY_TAKES_S
    return DAY_S / round_s * canaries, DAY_S / round_s


def tokens_by_formula(case: Case) -> float:
    """Tokens generated in an idle day."""
    canaries, checks = by_formula(case)
    return canaries * case.tokens + checks * case.health.gate_tokens


def _look_after(age: float, interval: float) -> float:
    """The first look at that age or later."""
    whole = age // interval * interval
    return whole + max(age - whole, min(RECHECK_S, interval)) if age > whole else age


def idle_server(case: Case) -> Driver:
    """A service on a server that nobody else uses, past its gate."""
    server = Server(1, idle())
    server.signs_fail = False
    made = driver(server, case.health, signs=case.signs)
    while not made.verdict.surfaces.ready:
        made.turn()
    return made


def simulated(case: Case) -> tuple[int, int, int, int]:
    """Canaries, scored ones, tokens generated and prompt tokens of one idle day, after the gate."""
    made = idle_server(case)
    server, canaries, checks = made.server, made.canaries, made.idle_checks
    tokens, prompted = server.tokens_for_us, server.prompt_tokens_for_us
    made.run(server.now + DAY_S)
    return (
        made.canaries - canaries,
        made.idle_checks - checks,
        server.tokens_for_us - tokens,
        server.prompt_tokens_for_us - prompted,
    )


def compared() -> Mapping[str, Case]:
    """The budgets that AMD profiles ship with, the rehearsal's, quick ones."""
    default = recipe.load().profile("mi355x").health
    # Nine tokens in place of eight: for its life, and no sooner for its text than without signs.
    for_life = replace(default, canary_tokens=3)
    return {
        "default (every AMD profile)": Case(default),
        "default without signs": Case(default, signs=False),
        "default, canary_tokens = 3": Case(for_life),
        SHIPPED: Case(budgets(SHIPPED)),
        QUICK: Case(budgets(QUICK)),
    }


def measure() -> Sequence[Figure]:
    """One idle day with each set of budgets."""
    rows, bars, raw, apart = [], [], {}, []
    for name, case in compared().items():
        canaries, checks, tokens, prompted = simulated(case)
        formula = tokens_by_formula(case)
        apart.append(abs(tokens / formula - 1))
        age = f"{case.age_s:.0f} s / {case.health.scrape_interval_s:.0f} s"
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
                "One simulated idle day after the gate. With signs a canary is of three times "
                "canary_tokens (24), sent twice canary_after_s after the last; without them it is of "
                "canary_tokens, sent when the last evidence is older than canary_after_s. In place of "
                "one every idle_check_after_s (600 s) come 64 scored tokens on a prompt of 300. A busy "
                "server that is seen alive is asked as often as an idle one, and without signs every "
                "evidence_max_age_s (300 s): 288 canaries of 8 tokens a day at most."
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
                "Formula: a canary at that age, up to the look at which it is due, + "
                f"{CANARY_TAKES_S} s of its own, of its tokens; the first that is due "
                f"idle_check_after_s after the last scored one is scored, of gate_tokens.",
            ),
            raw=raw,
        )
    ]
