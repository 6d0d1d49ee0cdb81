"""The simulated days of `make bench`, on a small scale: no false alarm, and wedges that are found."""

from __future__ import annotations

import random
from dataclasses import asdict

import pytest

from deploy.recipe import Health
from healthcheck.judge import Step
from healthcheck.verdict import State, Want
from tests.bench import canary_cost, month, watched
from tests.bench.drive import Driver, driver
from tests.bench.month import How, Seen
from tests.bench.traffic import DAY_S, Kind, Server, Spell, mixed


@pytest.fixture(scope="module")
def day() -> Seen:
    """One day of mixed traffic with an upgrade in the midst of it, and pauses of the service."""
    return month.simulate(seed=8, days=1)


def test_a_mixed_day_has_no_false_alarm(day: Seen) -> None:
    """A day of everything that may go on keeps a working server ready, and restarts none."""
    assert day.false_alarms == []
    assert State.STALLED.value not in day.states


def test_the_day_holds_what_it_says(day: Seen) -> None:
    """Every kind of traffic is met, canaries are sent, and the upgrade ends in READY again."""
    assert set(day.kinds) == {kind.value for kind in Kind}
    assert day.canaries > 100
    assert day.restarts == 1
    assert {State.DEAD.value, State.SMOKE.value, State.READY.value} <= set(day.states)
    assert day.turns > DAY_S / Health().scrape_interval_s / 2


def test_two_engines_have_no_false_alarm() -> None:
    """A quarter of a day on two engines, each with canaries of its own, stays ready."""
    assert month.simulate(seed=5, days=0.25, engines=2).false_alarms == []


@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_a_wedge_is_found(seed: int, engines: int) -> None:
    """The control: an engine wedged at some moment of a day is out of service soon."""
    wedge = month.find_wedge(seed, engines)
    assert wedge.seconds is not None
    assert wedge.seconds < 300


@pytest.mark.parametrize("how", [How.STOPPED, How.DEADLOCK])
@pytest.mark.parametrize("seed", [0, 2])
def test_with_signs_a_wedge_under_work_is_found_in_seconds(how: How, seed: int) -> None:
    """A busy engine whose cards are seen and whose /metrics answers: stopped, or asleep."""
    wedge = month.find_wedge(seed=4 * seed, how=how)
    goal = {How.STOPPED: month.STOPPED_GOAL_S, How.DEADLOCK: month.DEADLOCK_GOAL_S}[how]
    assert wedge.busy and wedge.seconds is not None
    assert wedge.seconds <= goal


def test_a_compiler_over_the_budget_is_told_and_no_restart() -> None:
    """By contract not ready after a minute, with its name; no false alarm, and never STALLED."""
    spells = iter([Spell(Kind.IDLE, 900), Spell(Kind.COMPILER, 250), Spell(Kind.IDLE, DAY_S)])
    server = Server(0, spells)
    server.signs_fail = False
    made = driver(server)
    said: list[tuple[float, str]] = []
    made.run(1500, lambda _: said.append((made.server.standing_s, made.verdict.line)))
    bad = [(at, line) for at, line in said if line.startswith("NOT_READY") and at]
    assert min(at for at, _ in bad) >= made.health.readiness_budget_s
    assert "compiling: hipcc, " in bad[0][1]
    assert not any(line.startswith("STALLED") for _, line in said)
    assert made.verdict.state is State.READY


@pytest.mark.parametrize("fault", month.FAULTS, ids=lambda fault: fault.name)
def test_what_goes_wrong_for_good_is_found(fault: month.Fault) -> None:
    """The controls of the days: each fault takes the server out of rotation within its hours."""
    assert month.find_fault(fault, seed=1) is not None


def test_a_pause_of_the_service_is_in_the_day(day: Seen) -> None:
    """A service that sleeps for up to an hour finds the server as it left it."""
    assert day.pauses and day.false_alarms == []


def test_a_stall_over_the_budget_is_told() -> None:
    """The days could show a false alarm: a stall past the budget, which they leave out, is one."""
    spells = iter([Spell(Kind.IDLE, 900), Spell(Kind.STALL, 200), Spell(Kind.IDLE, DAY_S)])
    made = driver(Server(1, spells))
    states = set()
    made.run(1500, lambda _: states.add(made.verdict.state))
    assert State.NOT_READY in states
    assert made.verdict.state is State.READY


def test_traffic_is_the_same_for_a_seed() -> None:
    """A false alarm can be looked at again: a seed gives the same day."""
    runs = [driver(Server(9, mixed(random.Random(9)))) for _ in range(2)]
    for made in runs:
        made.run(3600)
    assert runs[0].memory == runs[1].memory
    assert runs[0].turns == runs[1].turns


def test_our_generations_wait_behind_a_prefill() -> None:
    """A generation does not get on while a lone prefill runs, and its time-out is told."""
    spells = iter([Spell(Kind.IDLE, 600), Spell(Kind.PREFILL, 600), Spell(Kind.IDLE, DAY_S)])
    server = Server(1, spells)
    made = driver(server)
    made.run(599)
    assert made.verdict.state is State.READY
    server.move(601)
    want = canary(made)
    server.start(want)
    while server.poll()[0] is None and server.now < 700:
        server.move(server.now + 5)
    assert server.now == pytest.approx(601 + want.timeout_s, abs=6)


def canary(made: Driver) -> Want:
    """A canary as the verdict would ask for."""
    health, epoch = made.health, made.memory.epoch
    return Want(Step.CANARY, epoch, "n", 1, health.canary_tokens, health.canary_timeout_s)


@pytest.mark.parametrize("budgets", ["default (every AMD profile)", "default without signs"])
def test_the_formula_of_canaries_is_what_happens(budgets: str) -> None:
    """Tokens of an idle day follow from the budgets by the formula that the page gives."""
    case = canary_cost.compared()[budgets]
    made = canary_cost.idle_server(case)
    canaries, checks = made.canaries, made.idle_checks
    made.run(made.server.now + DAY_S / 8)
    sent = 8 * (made.canaries - canaries), 8 * (made.idle_checks - checks)
    assert sent == pytest.approx(canary_cost.by_formula(case), rel=0.08)


def test_quick_budgets_are_the_rehearsals_with_less_patience() -> None:
    """The recipe that the figures write is one that the product reads, and differs as the page says."""
    shipped, quick = (asdict(watched.budgets(p)) for p in (watched.SHIPPED, watched.QUICK))
    changed = {k for k in shipped if shipped[k] != quick[k]}
    assert changed == {
        "scrape_interval_s",
        "canary_after_s",
        "canary_timeout_s",
        "readiness_budget_s",
        "long_prompt_tokens",
    }
    assert all(quick[k] < shipped[k] for k in changed)
