"""What the verdict says: the reasons of a state, all of them, each with its figures."""

from __future__ import annotations

import pytest

from deploy.recipe import Health
from healthcheck.client.answers import Answer, Failure, FailureKind
from healthcheck.client.exposition import Exposition, Speculation
from healthcheck.client.listing import Listing
from healthcheck.judge import Finding, Outcome, Step
from healthcheck.reasons import Note
from healthcheck.verdict import (
    SURFACES,
    Policy,
    State,
    Transition,
    next_look_s,
    verdict,
)
from tests.support.verdict_machine import (
    DEAD,
    DENIED,
    GOOD,
    NAN,
    OK,
    REFUSED,
    RESET,
    SILENT,
    TIMEOUT,
    Machine,
    metrics,
    ready,
    sample,
)

BROKEN = Failure(FailureKind.MALFORMED, "/metrics answered 500")


def lines(machine: Machine) -> list[str]:
    return [str(note) for note in machine.memory.notes]


def test_a_verdict_is_state_age_and_reasons() -> None:
    """The line of a verdict is its state and every reason with its detail; its ages are now's."""
    machine = ready()
    for _ in range(3):
        machine.see(OK, metrics=BROKEN, generation=machine.generation(DENIED))
    now = verdict(machine.memory, machine.now + 7)
    assert now.line == (
        "DEGRADED metrics.unavailable (/metrics answered 500) config.unauthorized (answer: )"
    )
    assert now.surfaces == SURFACES[State.DEGRADED]
    assert now.evidence_age_s == machine.memory.evidence_age_s(machine.now) + 7  # type: ignore[operator]


# --- loading --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("health", "listing", "line"),
    [
        (REFUSED, None, "start.waiting (server.refused)"),
        (RESET, None, "start.waiting (server.reset)"),
        (TIMEOUT, None, "start.waiting (server.timeout)"),
        (
            Failure(FailureKind.UNRESOLVED, "no such host"),
            None,
            "start.waiting (server.unresolved)",
        ),
        (DEAD, None, "start.waiting (server.engine_dead)"),
        (Answer(299), None, "start.waiting (server.unexpected_status)"),
        (Answer(300), None, "start.waiting (server.redirect)"),
        (Answer(399), None, "start.waiting (server.redirect)"),
        (Answer(400), None, "start.waiting (server.unexpected_status)"),
        (OK, None, "start.waiting"),
        (OK, Note("config.unauthorized"), "config.unauthorized"),
        (OK, Note("server.redirect"), "server.redirect"),
        (OK, Listing(()), "config.wrong_model (expected m, served none)"),
        (OK, Listing(("a", "b")), "config.wrong_model (expected m, served a, b)"),
        (
            OK,
            Listing(("x" * 300,)),
            f"config.wrong_model (expected m, served {'x' * 120})",
        ),
    ],
)
def test_a_start_says_what_it_waits_for(
    health: Answer | Failure, listing: Listing | Note | None, line: str
) -> None:
    """LOADING names what /health or /v1/models say instead of being there, and nothing is asked."""
    machine = Machine()
    assert machine.see(health, listing=listing) is State.LOADING
    assert lines(machine)[0] == line
    assert machine.wanted() is None


def test_what_no_start_says_is_named_beside_the_waiting() -> None:
    """A name without an address or a refused handshake is no part of a start: a reason of its own,
    with its detail. What is refused, reset or late while a server loads is none."""
    machine = Machine()
    machine.see(Failure(FailureKind.TLS, "certificate has expired"))
    assert lines(machine)[1:] == ["server.tls (certificate has expired)"]
    for ordinary in (REFUSED, RESET, TIMEOUT):
        machine.see(ordinary)
        assert machine.codes == ["start.waiting"]


@pytest.mark.parametrize("kind", [k for k in FailureKind if k is not FailureKind.ABORTED])
def test_each_kind_of_failure_has_its_code(kind: FailureKind) -> None:
    """No two ways to get no answer from a server that serves share a reason."""
    machine = ready()
    for _ in range(3):
        machine.see(Failure(kind), metrics=metrics())
    slow = "server.slow" if kind is FailureKind.TIMEOUT else f"server.{kind}"
    assert machine.codes == [slow]
    gone = kind in (FailureKind.REFUSED, FailureKind.RESET, FailureKind.UNRESOLVED, FailureKind.TLS)
    assert machine.memory.state is (State.NOT_READY if gone else State.DEGRADED)


@pytest.mark.parametrize("kind", [FailureKind.UNRESOLVED, FailureKind.TLS])
def test_a_lost_name_is_not_ready_and_never_dead(kind: FailureKind) -> None:
    """Without a name or a handshake nobody gets through: out of rotation within 10 s; but a restart
    mends neither, so the engine's own probe holds, and what comes back passes a gate."""
    machine = ready()
    machine.see(OK, metrics=metrics(start=None))
    while machine.see(Failure(kind), after=next_look_s(machine.memory, machine.policy)):
        if machine.memory.state is State.NOT_READY:
            break
    assert machine.now - machine.memory.gone_since <= 10  # type: ignore[operator]
    for _ in range(1000):
        assert machine.see(Failure(kind)) is State.NOT_READY
    assert machine.see(OK, metrics=metrics(start=None)) is State.SMOKE


def test_a_start_over_its_budget_says_for_how_long() -> None:
    """From start_budget_s on the time comes first, and what is waited for after it."""
    machine = Machine()
    machine.see(REFUSED, after=7199)
    assert machine.codes == ["start.waiting"]
    assert machine.see(REFUSED, after=1) is State.LOADING
    assert lines(machine) == ["start.over_budget (7200 s)", "start.waiting (server.refused)"]


def test_the_budget_of_a_start_begins_with_it() -> None:
    """A server that leaves while its gate runs has all of start_budget_s to come back."""
    machine = Machine()
    machine.see(REFUSED, after=5000)
    machine.to_smoke()
    machine.see(REFUSED)
    machine.see(REFUSED, after=7199)
    assert machine.codes == ["start.waiting"]
    machine.see(REFUSED, after=1)
    assert lines(machine)[0] == "start.over_budget (7200 s)"


def test_the_first_model_listed_is_asked_for_where_none_is_expected() -> None:
    """Without a served model name in the profile whatever comes first is the model."""
    machine = Machine(Policy(Health()))
    assert machine.see(OK, listing=Listing(()), metrics=metrics()) is State.LOADING
    assert lines(machine) == ["config.wrong_model (expected None, served none)"]
    assert machine.see(OK, listing=Listing(("a", "b"), 900), metrics=metrics()) is State.SMOKE
    assert (machine.memory.model, machine.memory.max_model_len) == ("a", 900)
    assert lines(machine) == ["gate.running (the server is up)"]


# --- the gate -------------------------------------------------------------------------------------


def test_the_gate_says_which_step_it_is_at() -> None:
    """While nothing is wrong the reason of SMOKE is the step to come."""
    machine = Machine()
    machine.to_smoke()
    while (step := machine.memory.gate.step) is not None:
        machine.see(OK, metrics=metrics())
        assert lines(machine) == [f"gate.running ({step.value})"]
        made = machine.generation(step=step, tokens=(machine.readings, 5, 6))
        machine.see(OK, metrics=metrics(), generation=made)
    assert machine.memory.state is State.READY


def test_a_failed_gate_says_what_was_found_and_how_often() -> None:
    """Every bad finding of the last failed round, and the rounds that failed in a row."""
    machine = Machine()
    machine.to_smoke()
    machine.see(metrics=metrics(), generation=machine.generation(step=Step.WARM_UP))
    found = (
        *GOOD,
        Finding("logprobs", Outcome.BAD, "numerics.constant", {"mean": -2.0, "spread": 0.0}),
        Finding("variety", Outcome.BAD, "text.loop", {"period": 2}),
    )
    for failures in (1, 2):
        machine.see(metrics=metrics(), generation=machine.generation(found, step=Step.PROBE))
        assert lines(machine) == [
            "numerics.constant (logprobs: mean -2.0, spread 0.0)",
            "text.loop (variety: period 2)",
            f"gate.failed ({failures} in a row)",
        ]


def test_a_gate_that_gets_no_answer_says_so_beside_what_failed_before() -> None:
    """What the last generation could not tell is said as well, until one tells something."""
    machine = Machine()
    machine.to_smoke()
    machine.see(metrics=metrics(), generation=machine.generation(step=Step.WARM_UP))
    machine.see(metrics=metrics(), generation=machine.generation(NAN, step=Step.PROBE))
    silent = machine.generation((*GOOD, *SILENT), step=Step.PROBE)
    machine.see(metrics=metrics(), generation=silent)
    assert machine.codes == ["numerics.nan", "gate.failed", "generation.timeout"]
    machine.see(metrics=metrics(), generation=machine.generation(step=Step.PROBE))
    assert machine.codes == ["numerics.nan", "gate.failed"]


def test_a_gate_without_progress_says_for_how_long() -> None:
    """A first generation that makes no step for readiness_budget_s is named; the state stays."""
    machine = Machine()
    machine.to_smoke()
    began = machine.now
    running = machine.outstanding(began)
    while machine.codes == ["gate.running"]:
        assert machine.see(metrics=metrics(), outstanding=running) is State.SMOKE
        assert machine.now - began <= 60
    assert lines(machine) == ["gate.no_progress (60 s)"]


# --- serving --------------------------------------------------------------------------------------


def test_every_reason_to_be_not_ready_is_given() -> None:
    """A port that is gone does not hide that the text was bad, nor that nothing moves."""
    machine = ready()
    machine.see(OK, metrics=metrics(sample(running=1)))
    for _ in range(3):
        machine.see(
            OK,
            metrics=metrics(sample(running=1)),
            generation=machine.generation(
                (*GOOD, Finding("logprobs", Outcome.BAD, "numerics.nan", {"status": 400}))
            ),
        )
    for _ in range(12):
        machine.see(OK, metrics=metrics(sample(running=1)))
    for _ in range(3):
        machine.see(Failure(FailureKind.REFUSED, "connect: refused"), after=1)
    assert machine.memory.state is State.NOT_READY
    assert lines(machine) == [
        "server.refused (connect: refused)",
        "numerics.nan (logprobs: status 400)",
        "progress.none (60 s)",
    ]


def test_a_port_that_answers_strangely_after_it_was_gone_is_still_out() -> None:
    """What is no good answer clears nothing; the reason is what /health says now."""
    machine = ready()
    for _ in range(3):
        machine.see(REFUSED, after=1)
    for health, line in (
        (Answer(500), "server.unexpected_status (/health answers 500)"),
        (Answer(302), "server.redirect (/health answers 302)"),
        (Failure(FailureKind.TIMEOUT, "5 s"), "server.timeout (5 s)"),
    ):
        assert machine.see(health, after=1) is State.NOT_READY
        assert lines(machine) == [line]


def test_a_text_that_was_bad_and_then_silent_is_still_bad() -> None:
    """A canary without an answer clears nothing, nor does it hide what was bad."""
    machine = ready()
    for _ in range(3):
        machine.see(OK, metrics=metrics(), generation=machine.generation(NAN))
    machine.see(OK, metrics=metrics(), generation=machine.generation(SILENT))
    assert machine.memory.state is State.NOT_READY
    assert lines(machine) == ["numerics.nan (logprobs: )"]


def test_bad_acceptance_does_not_hide_bad_text() -> None:
    """With acceptance_effect not-ready both reasons stand, and their order is kept."""
    machine = ready(acceptance_effect="not-ready")
    for turn in range(1, 10):
        machine.see(OK, metrics=accepted(turn, (0.0, 0.0)))
    for _ in range(3):
        machine.see(OK, metrics=accepted(10, (0.0, 0.0)), generation=machine.generation(NAN))
    assert machine.codes == ["numerics.nan", "acceptance.low"]


@pytest.mark.parametrize(
    ("stuck", "line"),
    [
        ((0.0, 1.0), "progress.none (60 s, engine 1)"),
        ((1.0, 1.0), "progress.none (60 s, engine 0 1)"),
    ],
)
def test_of_several_engines_the_stuck_ones_are_named(stuck: tuple[float, float], line: str) -> None:
    """The reason names every engine that has work and makes no step."""
    machine = ready()
    seen = metrics(*[sample(7, running, engine=str(i)) for i, running in enumerate(stuck)])
    while machine.memory.state is State.READY:
        machine.see(OK, metrics=seen)
    assert lines(machine) == [line]


def test_one_engine_alone_is_not_named() -> None:
    """With one engine there is nothing to tell apart."""
    machine = ready()
    while machine.memory.state is State.READY:
        machine.see(OK, metrics=metrics(sample(running=1)))
    assert lines(machine) == ["progress.none (60 s)"]


def test_a_recovery_keeps_its_cause_once() -> None:
    """However long it takes, the reasons are the recovery and what it recovers from."""
    machine = ready()
    while machine.memory.state is not State.NOT_READY:
        machine.see(OK, metrics=metrics(sample(running=1)))
    for _ in range(3):
        machine.see(OK, metrics=metrics(sample(tokens=9)))
        assert lines(machine) == ["recovery.pending", "progress.none (60 s)"]


def test_dead_says_for_how_long_the_port_is_gone() -> None:
    """Refused or 503 for long enough is DEAD with the time."""
    machine = ready()
    while machine.memory.state is not State.DEAD:
        machine.see(REFUSED, after=1)
    assert lines(machine) == ["server.refused (for 30 s)"]
    told = ready()
    for _ in range(3):
        told.see(DEAD, after=1)
    assert lines(told) == ["server.engine_dead"]
    while told.memory.state is not State.DEAD:
        told.see(REFUSED, after=1)
    assert lines(told) == ["server.engine_dead (for 30 s)"]


def test_stalled_says_for_how_long_and_then_that_it_moves() -> None:
    """The reason of STALLED is the time without a step; the gate after it says why there is one."""
    machine = ready()
    while machine.memory.state is not State.STALLED:
        machine.see(OK, metrics=metrics(sample(running=2)))
    assert lines(machine) == ["progress.stalled (670 s)"]
    machine.see(OK, metrics=metrics(sample(tokens=5, running=2)))
    assert lines(machine) == ["gate.running (it moves again)"]


# --- degraded -------------------------------------------------------------------------------------


def accepted(turn: int, rates: tuple[float, ...], engine: str = "0") -> Exposition:
    """Real traffic of 200 drafts a turn."""
    total = 200.0 * turn
    at = tuple(rate * total for rate in rates)
    spec = Speculation(total, total * len(rates), sum(at), at)
    return metrics(sample(tokens=turn, running=1, spec=spec, engine=engine))


def test_the_second_engines_acceptance_is_judged_beside_an_idle_first() -> None:
    """An engine without a window of its own hides nobody's."""
    machine = ready()
    for turn in range(1, 10):
        (seen,) = accepted(turn, (0.0, 0.0), engine="1").engines
        machine.see(OK, metrics=metrics(sample(), seen))
    assert lines(machine) == ["acceptance.low (engine 1, 200 drafts, by position 0.00 0.00)"]


def test_every_reason_to_be_degraded_is_given() -> None:
    """Slow, blind, scrapes that fail, acceptance: one does not hide another."""
    machine = ready()
    for turn in range(1, 10):
        machine.see(OK, metrics=accepted(turn, (0.0, 0.0)))
    for _ in range(3):
        machine.see(TIMEOUT, metrics=Exposition(1.0, ()), generation=machine.generation(DENIED))
    assert machine.memory.state is State.DEGRADED
    assert machine.codes == [
        "server.slow",
        "metrics.no_engine",
        "config.unauthorized",
        "acceptance.low",
    ]


def test_a_long_reason_is_cut() -> None:
    """A finding's figures take 200 characters of a reason at most."""
    machine = ready()
    found = (Finding("answer", Outcome.UNKNOWN, "config.unauthorized", {"message": "x" * 300}),)
    for _ in range(3):
        machine.see(OK, metrics=metrics(), generation=machine.generation(found))
    assert machine.memory.notes == (
        Note("config.unauthorized", ("answer: message " + "x" * 300)[:200]),
    )


def test_the_timeline_has_time_state_and_first_reason() -> None:
    """A change of state is remembered with when it was and why; staying in one is no change."""
    machine = ready()
    for _ in range(4):
        machine.see(OK, metrics=BROKEN)
    degraded, turned = machine.memory.timeline[-1], machine.now - 5
    assert degraded == Transition(turned, State.DEGRADED, "metrics.unavailable")
    assert machine.memory.since == turned
    assert [t.code for t in machine.memory.timeline] == [
        "start.waiting",
        "gate.running",
        "",
        "metrics.unavailable",
    ]
