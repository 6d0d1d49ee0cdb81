"""Work, steps and silence: when no progress is no service, and when it is a stall."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from healthcheck.client.answers import Answer, Failure, FailureKind
from healthcheck.judge import Finding, Outcome, Step
from healthcheck.verdict import Outstanding, State
from tests.support.verdict_machine import (
    DEAD,
    GOOD,
    OK,
    REFUSED,
    SILENT,
    TIMEOUT,
    Machine,
    metrics,
    ready,
    sample,
)

CUT_OFF = (Finding("answer", Outcome.UNKNOWN, "generation.failed"),)


def test_a_lone_long_prefill_is_progress() -> None:
    """Token counters frozen for 1,028 s, only a gauge moving: READY throughout."""
    machine = ready()
    for i in range(206):
        state = machine.see(OK, metrics=metrics(sample(running=1, cache=i / 1000)))
        assert state is State.READY
        assert machine.wanted() is None


def test_a_slow_step_under_the_stall_budget_recovers_without_a_gate() -> None:
    """A 250 s JIT stall is NOT_READY for its time, then READY by a good generation."""
    machine = ready()
    for _ in range(50):
        machine.see(OK, metrics=metrics(sample(running=1)))
    assert machine.memory.state is State.NOT_READY
    machine.see(OK, metrics=metrics(sample(tokens=9, running=1)))
    assert machine.codes == ["recovery.pending", "progress.none"]
    made = machine.generation(step=Step.RECOVERY)
    machine.see(OK, metrics=metrics(sample(tokens=19, running=1)), generation=made)
    assert machine.memory.state is State.READY


def test_the_clock_of_a_wedge_runs_on_over_retried_canaries() -> None:
    """Each canary is given up after 30 s; the time without an answer adds up."""
    machine = ready()
    began = machine.now
    for _ in range(5):
        machine.see(OK, metrics=metrics(), outstanding=machine.outstanding(began))
    gave_up = machine.generation(SILENT, lasting=machine.now + 5 - began)
    assert machine.see(OK, metrics=metrics(), generation=gave_up) is State.READY
    want = machine.wanted()
    assert want is not None and want.step is Step.CANARY
    again = machine.now
    while machine.memory.state is State.READY:
        machine.see(OK, metrics=metrics(), outstanding=machine.outstanding(again))
    assert machine.now - began < 70


def stalled() -> Machine:
    """An idle engine that never answered its canary."""
    machine = ready()
    began = machine.now
    while machine.memory.state is not State.STALLED:
        machine.see(OK, metrics=metrics(), outstanding=machine.outstanding(began))
    return machine


def test_a_stalled_engine_that_answers_goes_through_the_gate() -> None:
    """An answer is a sign of life even where no counter shows the step."""
    machine = stalled()
    assert machine.see(OK, metrics=metrics(), generation=machine.generation()) is State.SMOKE
    assert machine.memory.epoch == 2


@pytest.mark.parametrize(
    "told",
    [{"findings": SILENT}, {"findings": CUT_OFF}, {"findings": GOOD, "epoch": -1}],
    ids=["silent", "cut off", "of another"],
)
def test_no_answer_of_its_own_leaves_an_engine_stalled(told: dict[str, Any]) -> None:
    """A canary given up, or one of the engine before, is no sign of life."""
    machine = stalled()
    made = replace(machine.generation(), **told)
    assert machine.see(OK, metrics=metrics(), generation=made) is State.STALLED
    assert machine.codes == ["progress.stalled"]


def test_a_stalled_engine_whose_metrics_fail_stays_stalled() -> None:
    """That its scheduler is hidden for a while is no sign of life either."""
    machine = stalled()
    broken = Failure(FailureKind.MALFORMED, "500")
    for _ in range(5):
        assert machine.see(OK, metrics=broken) is State.STALLED


@pytest.mark.parametrize(
    ("seen", "code"), [([DEAD] * 31, "server.engine_dead"), ([REFUSED] * 31, "server.refused")]
)
def test_a_stalled_engine_can_die(seen: list[Answer | Failure], code: str) -> None:
    """The port of a stalled engine that goes is DEAD as any other's, and no sooner."""
    machine = stalled()
    states = [machine.see(health, after=1) for health in seen]
    assert states == [State.STALLED] * (len(seen) - 1) + [State.DEAD]
    assert machine.codes == [code]


def test_a_stalled_engine_that_only_twitches_is_stalled_again() -> None:
    """One step starts a new gate; if the gate's own generation hangs, liveness must fail again."""
    machine = ready()
    while machine.memory.state is not State.STALLED:
        machine.see(OK, metrics=metrics(sample(running=2)))
    assert machine.see(OK, metrics=metrics(sample(tokens=5, running=2))) is State.SMOKE
    twitched = machine.now
    while machine.memory.state is State.SMOKE:
        running = Outstanding(Step.WARM_UP, machine.memory.epoch, twitched)
        machine.see(OK, metrics=metrics(sample(tokens=5, running=2)), outstanding=running)
        assert machine.now - twitched < 800
    assert machine.memory.state is State.STALLED


def test_a_generation_of_the_engine_before_does_not_stall_the_new_one() -> None:
    """An old canary that still hangs is not held against the engine that took its place."""
    machine = ready()
    old = machine.outstanding(machine.now)
    machine.see(OK, metrics=metrics(start=500.0), outstanding=old)
    for _ in range(200):
        state = machine.see(OK, metrics=metrics(start=500.0), outstanding=old)
        assert state is State.SMOKE


def test_a_server_that_hides_its_scheduler_is_never_stalled() -> None:
    """/health 200 and no metrics: a restart would be a guess, so NOT_READY is the limit."""
    machine = ready()
    began = machine.now
    broken = Failure(FailureKind.MALFORMED, "500")
    for _ in range(300):
        machine.see(OK, metrics=broken, outstanding=machine.outstanding(began))
    assert machine.memory.state is State.NOT_READY


def test_a_frozen_api_process_is_stalled_in_the_end() -> None:
    """Nothing at all is answered any more: NOT_READY, then STALLED."""
    machine = ready()
    began = machine.now
    for _ in range(200):
        machine.see(TIMEOUT, metrics=TIMEOUT, outstanding=machine.outstanding(began))
    assert State.NOT_READY in {t.state for t in machine.memory.timeline}
    assert machine.memory.state is State.STALLED


def test_three_readings_confirm_that_nothing_moves() -> None:
    """However short the budget: one look without a step is none, three in a row are."""
    machine = ready(readiness_budget_s=1.0)
    machine.see(OK, metrics=metrics(sample(running=2)))  # the work itself is the move
    states = [machine.see(OK, metrics=metrics(sample(running=2))) for _ in range(3)]
    assert states == [State.READY, State.READY, State.NOT_READY]


def test_three_readings_confirm_that_nothing_answers() -> None:
    """A canary that is not answered at once is no silence yet, however short the budget."""
    machine = ready(readiness_budget_s=1.0)
    running = machine.outstanding(machine.now)
    states = [machine.see(OK, metrics=metrics(), outstanding=running) for _ in range(3)]
    assert states == [State.READY, State.READY, State.NOT_READY]


def test_the_clock_of_an_engine_first_seen_at_work_begins_there() -> None:
    """Work that was there at the first look is as old as that look; idleness is no work."""
    machine = ready()
    seen = metrics(sample(), sample(7, 1, engine="1"), sample(7, engine="2"))
    machine.see(OK, metrics=seen)
    first = machine.now
    assert machine.memory.stuck_for(machine.now) == 0
    assert [e.work_since for e in machine.memory.engines.values()] == [None, first, None]
    for _ in range(3):
        machine.see(OK, metrics=seen)
        stuck = {name: e.stuck_for(machine.now) for name, e in machine.memory.engines.items()}
        assert stuck == {"0": 0, "1": machine.now - first, "2": 0}


def test_a_step_ends_the_clock_and_begins_it_anew() -> None:
    """After a step the time without one counts from there, and not at once."""
    machine = ready()
    for _ in range(5):
        machine.see(OK, metrics=metrics(sample(running=1)))
    machine.see(OK, metrics=metrics(sample(tokens=3, running=1)))
    stepped = machine.now
    assert machine.memory.engines["0"].stuck_for(machine.now + 1) == 0
    machine.see(OK, metrics=metrics(sample(tokens=3, running=1)))
    assert machine.memory.stuck_for(machine.now) == machine.now - stepped


def test_a_canary_that_is_being_answered_is_no_silence() -> None:
    """While its engine makes steps a generation may run; the clock begins when they end."""
    machine = ready()
    running = machine.outstanding(machine.now)
    for tokens in range(1, 5):
        machine.see(OK, metrics=metrics(sample(tokens)), outstanding=running)
        assert machine.memory.stuck_for(machine.now + 1) == 0
    stepped = machine.now
    for _ in range(3):
        machine.see(OK, metrics=metrics(sample(4)), outstanding=running)
        assert machine.memory.stuck_for(machine.now) == machine.now - stepped


def test_the_step_of_another_engine_does_not_answer_a_canary() -> None:
    """A canary for engine 1 waits for engine 1, however busy engine 0 is."""
    machine = ready()
    machine.see(OK, metrics=metrics(sample(0, 1), sample(engine="1")))
    began = machine.now
    running = Outstanding(Step.CANARY, machine.memory.epoch, began, "1")
    while machine.memory.state is State.READY:
        seen = metrics(sample(machine.now, 1), sample(engine="1"))
        machine.see(OK, metrics=seen, outstanding=running)
        assert machine.memory.stuck_for(machine.now) == machine.now - began
    assert machine.now - began == 60
    assert machine.codes == ["progress.none"]
