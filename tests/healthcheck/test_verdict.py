"""The state machine: readings in, states out, with times of the test's own."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from deploy.recipe import Health
from healthcheck.client.answers import Answer, Failure, FailureKind
from healthcheck.client.exposition import Exposition, Speculation
from healthcheck.client.listing import Listing
from healthcheck.judge import CHANCE, Finding, Outcome, Step
from healthcheck.verdict import (
    ANY,
    SURFACES,
    Alarm,
    Gate,
    Generation,
    Memory,
    Outstanding,
    Policy,
    Record,
    State,
    Surfaces,
    Want,
    begin,
    gate_limit_s,
    next_look_s,
    surfaces,
)
from healthcheck.verdict.observe import forget_engine
from tests.support.verdict_machine import (
    DEAD,
    DENIED,
    GOOD,
    LISTED,
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

# --- surfaces -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "startup", "ready_", "live"),
    [
        (State.LOADING, 503, 503, 200),
        (State.SMOKE, 503, 503, 200),
        (State.READY, 200, 200, 200),
        (State.DEGRADED, 200, 200, 200),
        (State.NOT_READY, 200, 503, 200),
        (State.STALLED, 503, 503, 503),
        (State.DEAD, 503, 503, 503),
        (State.DRAINING, 200, 503, 200),
    ],
)
def test_every_state_has_its_surfaces(state: State, startup: int, ready_: int, live: int) -> None:
    """The contract's table of states and probes holds; of a server that is still there since it
    passed its gate /startupz passes in every state that a stop can come to."""
    down = state in (State.STALLED, State.DEAD)
    there = replace(begin(0.0), state=state, passed=True)
    assert surfaces(there).startup is (SURFACES[state].startup or down)
    assert surfaces(replace(there, passed=False)) == SURFACES[state]
    assert SURFACES[state] == Surfaces(startup == 200, ready_ == 200, live == 200)


# --- start and gate -------------------------------------------------------------------------------


def test_an_engine_that_dies_in_its_gate_is_dead_when_confirmed() -> None:
    """503 while the gate runs is no death before dead_after_s, as while serving."""
    machine = Machine()
    machine.to_smoke()
    states = [machine.see(DEAD, after=1) for _ in range(31)]
    assert states == [State.SMOKE] * 30 + [State.DEAD]
    assert machine.codes == ["server.engine_dead"]


def test_a_gate_without_a_step_for_the_stall_budget_is_stalled() -> None:
    """A warm-up that hangs fails liveness after the same budget and confirmation as work does."""
    machine = Machine()
    machine.to_smoke()
    began = machine.now
    running = Outstanding(Step.WARM_UP, machine.memory.epoch, began)
    while machine.see(OK, metrics=metrics(), outstanding=running) is State.SMOKE:
        assert machine.now - began < 700
    assert machine.memory.state is State.STALLED
    assert machine.now - began == machine.policy.health.stall_budget_s + 10


@pytest.mark.parametrize(
    "second", [metrics(sample(tokens=3)), metrics(sample(tokens=100), start=50.0)]
)
def test_another_engine_is_known_from_the_second_look_on(second: Exposition) -> None:
    """What the first look of a gate saw is what the next is compared with."""
    machine = Machine()
    machine.see(OK, listing=LISTED, metrics=metrics(sample(tokens=100)))
    made = machine.generation(step=Step.WARM_UP)
    assert machine.see(OK, metrics=second, generation=made) is State.SMOKE
    assert machine.codes == ["engine.new"]
    want = machine.wanted()
    assert want is not None and want.step is Step.WARM_UP


def test_a_generation_of_an_earlier_engine_is_ignored() -> None:
    """A late answer from before a restart cannot pass the new engine's gate."""
    machine = Machine()
    machine.to_smoke()
    old = machine.generation(step=Step.WARM_UP)
    machine.see(REFUSED)
    machine.to_smoke()
    machine.see(metrics=metrics(), generation=old)
    want = machine.wanted()
    assert want is not None and want.step is Step.WARM_UP


# --- the port -------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [REFUSED, RESET, DEAD])
def test_three_bad_verdicts_leave_ready_and_two_do_not(gone: Answer | Failure) -> None:
    """One or two bad answers change nothing; the third takes the server out of service."""
    machine = ready()
    assert machine.see(gone, after=1) is State.READY
    assert machine.see(gone, after=1) is State.READY
    assert machine.see(gone, after=1) in (State.NOT_READY, State.DEAD)


def test_a_killed_engine_is_out_of_service_within_ten_seconds() -> None:
    """With the pace that the machine itself asks for, refusal shows within 10 s."""
    machine = ready()
    killed = machine.now
    machine.see(REFUSED, after=5)  # the worst moment: just after a scrape
    while machine.memory.state is State.READY:
        machine.see(REFUSED, after=next_look_s(machine.memory, machine.policy))
    assert machine.memory.state is State.NOT_READY
    assert machine.now - killed <= 10


@pytest.mark.parametrize("then", [DEAD, REFUSED])
def test_health_503_is_dead_when_it_lasts(then: Answer | Failure) -> None:
    """503 means EngineDeadError, or a proxy's bad moment: out of service at once, DEAD after 30 s,
    whether the process stays or leaves."""
    machine = ready()
    states = [machine.see(DEAD if n == 0 else then, after=1) for n in range(31)]
    assert states == [State.READY] * 2 + [State.NOT_READY] * 28 + [State.DEAD]
    assert machine.codes == ["server.engine_dead"]


def test_dead_recovers_through_a_new_gate_only() -> None:
    """A server that listens again after DEAD is in SMOKE, whatever it answered before."""
    machine = ready()
    for _ in range(40):
        machine.see(REFUSED, after=1)
    assert machine.memory.state is State.DEAD
    assert machine.see(OK, metrics=metrics()) is State.DEAD  # listens, model not listed yet
    made = machine.generation()
    assert machine.see(OK, metrics=metrics(), generation=made) is State.DEAD
    machine.to_ready()


def test_what_comes_back_after_dead_is_asked_as_it_lists_itself() -> None:
    """Another model with another context may be served there now; the gate takes both from it."""
    machine = Machine(Policy(Health()))
    machine.to_ready()
    for _ in range(31):
        machine.see(DEAD, after=1)
    assert machine.memory.state is State.DEAD
    assert machine.see(OK, listing=Listing(("other",), 256), metrics=metrics()) is State.SMOKE
    assert (machine.memory.model, machine.memory.max_model_len) == ("other", 256)
    assert Step.LONG not in machine.memory.gate.steps


@pytest.mark.parametrize("seen", [metrics(start=None), Failure(FailureKind.MALFORMED)])
def test_a_process_that_cannot_be_told_apart_goes_through_the_gate(
    seen: Exposition | Failure,
) -> None:
    """Gone and back without a start time to compare: it is taken for another engine."""
    machine = ready()
    for _ in range(5):
        machine.see(REFUSED, after=1)
    for _ in range(4):
        state = machine.see(OK, metrics=seen, generation=machine.generation())
        assert state is not State.READY
    assert machine.memory.state is State.SMOKE


def test_one_refusal_casts_no_doubt_on_who_is_there() -> None:
    """Without a start time to compare, it takes a confirmed absence to take it for another."""
    machine = ready()
    machine.see(OK, metrics=metrics(start=None))
    machine.see(REFUSED, after=1)
    assert machine.see(OK, metrics=metrics(start=None)) is State.READY


@pytest.mark.parametrize(
    ("unknown", "code"),
    [
        (TIMEOUT, "server.slow"),
        (Failure(FailureKind.MALFORMED), "server.malformed"),
        (Answer(404), "server.unexpected_status"),
        (Answer(302), "server.redirect"),
        (Answer(500), "server.unexpected_status"),
    ],
)
def test_unknown_answers_of_health_degrade_and_no_more(
    unknown: Answer | Failure, code: str
) -> None:
    """Time-outs and foreign answers are no verdict: DEGRADED while work goes on."""
    machine = ready()
    for i in range(30):
        state = machine.see(unknown, metrics=metrics(sample(tokens=i, running=1)))
        assert state in (State.READY, State.DEGRADED)
    assert machine.codes == [code]
    for i in range(2):
        machine.see(OK, metrics=metrics(sample(tokens=100 + i, running=1)))
    assert machine.memory.state is State.READY


# --- another engine -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (metrics(sample(tokens=100)), metrics(sample(tokens=3))),
        (metrics(start=1.0), metrics(start=2000.0)),
        (
            metrics(sample(spec=Speculation(9, 36, 20, (9, 6, 3, 2)))),
            metrics(sample(spec=Speculation(0, 0, 0, (0, 0, 0, 0)))),
        ),
    ],
    ids=["counter-reset", "process-start", "draft-counter-reset"],
)
def test_a_new_engine_goes_through_the_gate(first: Exposition, second: Exposition) -> None:
    """A counter that went back or a new start time is a new engine: SMOKE."""
    machine = ready()
    assert machine.see(OK, metrics=first) is State.READY
    assert machine.see(OK, metrics=second) is State.SMOKE
    assert machine.codes == ["engine.new"]
    want = machine.wanted()
    assert want is not None and want.step is Step.WARM_UP


def test_a_counter_that_appears_is_no_reset() -> None:
    """Series that were absent and come later are not taken for a new engine."""
    machine = ready()
    machine.see(OK, metrics=metrics(sample(tokens=5)))
    with_spec = metrics(sample(tokens=6, spec=Speculation(1, 4, 2, (1, 1, 0, 0))))
    assert machine.see(OK, metrics=with_spec) is State.READY


OF_THE_SERVICE = {
    "started_at", "state", "since", "at", "notes", "timeline", "jitter_seed",
    "generations", "last_generation", "outstanding", "texts", "woke_at", "renewals",
}  # fmt: skip
OF_THE_PORT = {
    "model", "max_model_len", "sampled_at", "transport", "unclear", "unclear_note", "scrape",
    "scrape_note", "gone_since", "said_dead", "signs", "ended", "born_at",
}  # fmt: skip
COUNTED_ON = {"epoch", "gate"}


def test_of_another_engine_nothing_is_known() -> None:
    """What was known of the engine before is void, all but what is the service's or the port's."""
    machine = ready()
    raised = Alarm(True, 3, 0)
    known = replace(
        machine.memory,
        process_start=7.0,
        passed=True,
        identity_doubt=True,
        blind=raised,
        over_stall=2,
        stale=3,
        records={"0": Record(unanswered=1)},
        counted_at=2.0,
        uncounted_since=3.0,
        progress_at=4.0,
        born_at=6.0,
        recovery_good=5,
        recovery_generation=True,
    )
    after, fresh = forget_engine(known), begin(0.0)
    assert (after.epoch, after.gate) == (known.epoch + 1, Gate(round=known.gate.round + 1))
    for name in {f.name for f in fields(Memory)} - COUNTED_ON:
        expected = known if name in OF_THE_SERVICE | OF_THE_PORT else fresh
        assert getattr(after, name) == getattr(expected, name), name
        if expected is fresh:
            assert getattr(known, name) != getattr(fresh, name), f"{name}: the test sets none"


@pytest.mark.parametrize(
    ("start", "state"), [(1.5, State.READY), (0.5, State.READY), (1.6, State.SMOKE)]
)
def test_a_start_time_may_differ_by_its_rounding(start: float, state: State) -> None:
    """The same process prints its start with two digits; half a second is nobody's restart."""
    machine = ready()
    assert machine.see(OK, metrics=metrics(start=start)) is state


def test_metrics_that_come_late_are_no_new_engine() -> None:
    """A server that hid /metrics until now is the one that passed the gate."""
    machine = Machine()
    broken = Failure(FailureKind.MALFORMED, "500")
    machine.see(OK, listing=LISTED, metrics=broken)
    machine.pass_gate(broken)
    epoch = machine.memory.epoch
    for _ in range(2):
        assert machine.see(OK, metrics=metrics()) is not State.SMOKE
    assert (machine.memory.state, machine.memory.epoch) == (State.READY, epoch)


# --- generations ----------------------------------------------------------------------------------


def test_three_bad_generations_leave_ready() -> None:
    """The first bad one is DEGRADED and asked again at once; the third is NOT_READY, asked later."""
    machine = ready()
    for expected in (State.DEGRADED, State.DEGRADED, State.NOT_READY):
        made = machine.generation(NAN)
        assert machine.see(OK, metrics=metrics(), generation=made) is expected
        assert machine.codes == ["numerics.nan"]
        assert (machine.wanted() is not None) is (expected is State.DEGRADED)
    machine.see(OK, metrics=metrics())
    assert machine.wanted() is not None
    assert machine.codes == ["numerics.nan"]


def test_scrapes_between_bad_generations_do_not_hide_them() -> None:
    """Good scrapes say nothing about the text: the bad generations still add up."""
    machine = ready()
    for _ in range(3):
        machine.see(OK, metrics=metrics(), generation=machine.generation(NAN))
        machine.see(OK, metrics=metrics())
    assert machine.memory.state is State.NOT_READY


def test_recovery_needs_two_good_verdicts_one_of_them_a_generation() -> None:
    """Good scrapes alone never return to READY; a generation and one more verdict do."""
    machine = ready()
    for _ in range(4):
        machine.see(DEAD, after=1)
    for _ in range(20):
        assert machine.see(OK, metrics=metrics()) is State.NOT_READY
    made = machine.generation(step=Step.RECOVERY)
    assert machine.see(OK, metrics=metrics(), generation=made) is State.READY
    again = stuck_then_moving()
    made = again.generation(step=Step.RECOVERY)
    assert again.see(OK, metrics=metrics(sample(tokens=10)), generation=made) is State.READY


def stuck_then_moving(**health: object) -> Machine:
    """NOT_READY for work without a step, which has just made one."""
    machine = ready(**health)
    while machine.memory.state is not State.NOT_READY:
        machine.see(OK, metrics=metrics(sample(running=1)))
    machine.see(OK, metrics=metrics(sample(tokens=9)))
    return machine


def test_a_bad_text_begins_the_recovery_again() -> None:
    """Two good verdicts are two in a row, and the generation is one of them; the bad text is
    still a doubt."""
    machine = stuck_then_moving()
    moved = metrics(sample(tokens=9))
    assert machine.see(OK, metrics=moved, generation=machine.generation(NAN)) is State.NOT_READY
    assert machine.see(OK, metrics=moved, generation=machine.generation()) is State.NOT_READY
    assert machine.see(OK, metrics=moved) is State.DEGRADED
    again = stuck_then_moving(good_verdicts=3)
    again.see(OK, metrics=moved, generation=again.generation())
    again.see(OK, metrics=moved, generation=again.generation(NAN))
    for _ in range(10):
        assert again.see(OK, metrics=moved) is State.NOT_READY


def test_a_port_that_fails_for_a_moment_begins_the_recovery_again() -> None:
    """One refusal takes back what was good so far, the generation included."""
    machine = stuck_then_moving(good_verdicts=3)
    moved = metrics(sample(tokens=9))
    machine.see(OK, metrics=moved, generation=machine.generation())
    machine.see(DEAD, after=1)
    for _ in range(10):
        assert machine.see(OK, metrics=moved) is State.NOT_READY
    made = machine.generation(step=Step.RECOVERY)
    assert machine.see(OK, metrics=moved, generation=made) is State.READY


@pytest.mark.parametrize("untold", [SILENT, DENIED])
def test_a_generation_that_told_nothing_is_no_recovery(untold: tuple[Finding, ...]) -> None:
    """A time-out or a refusal is no passed generation, whatever the looks beside it say."""
    machine = stuck_then_moving()
    moved = metrics(sample(tokens=9))
    for _ in range(2):
        machine.see(OK, metrics=moved, generation=machine.generation(untold, Step.RECOVERY))
    for tokens in range(10, 20):
        assert machine.see(OK, metrics=metrics(sample(tokens=tokens))) is State.NOT_READY


def test_a_look_that_told_nothing_is_no_good_verdict() -> None:
    """A time-out of /health neither ends a recovery nor begins it again."""
    machine = stuck_then_moving(good_verdicts=3)
    made = machine.generation(step=Step.RECOVERY)
    assert machine.see(OK, metrics=metrics(sample(9)), generation=made) is State.NOT_READY
    assert machine.see(TIMEOUT, metrics=metrics(sample(9))) is State.NOT_READY
    assert machine.see(OK, metrics=metrics(sample(9))) is State.READY


def test_a_new_cause_takes_back_a_recovery() -> None:
    """What got stuck again on its way back owes two good verdicts and a generation anew."""
    machine = stuck_then_moving(good_verdicts=3)
    made = machine.generation(step=Step.RECOVERY)
    machine.see(OK, metrics=metrics(sample(tokens=9, running=1)), generation=made)
    assert machine.codes == ["recovery.pending", "progress.none"]
    while machine.codes != ["progress.none"]:
        machine.see(TIMEOUT, metrics=metrics(sample(tokens=9, running=1)))
    moved = metrics(sample(tokens=19))
    made = machine.generation(step=Step.RECOVERY)
    assert machine.see(OK, metrics=moved, generation=made) is State.NOT_READY
    assert machine.see(OK, metrics=moved) is State.NOT_READY
    assert machine.see(OK, metrics=moved) is State.READY
    unasked = stuck_then_moving(good_verdicts=3)
    made = unasked.generation(step=Step.RECOVERY)
    unasked.see(OK, metrics=metrics(sample(tokens=9, running=1)), generation=made)
    while unasked.codes != ["progress.none"]:
        unasked.see(TIMEOUT, metrics=metrics(sample(tokens=9, running=1)))
    for _ in range(10):
        assert unasked.see(OK, metrics=moved) is State.NOT_READY


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (Failure(FailureKind.MALFORMED, "/metrics answered 500"), "metrics.unavailable"),
        (Exposition(1.0, ()), "metrics.no_engine"),
    ],
)
def test_a_failing_scrape_degrades_after_three(broken: Exposition | Failure, code: str) -> None:
    """/metrics that cannot be read is DEGRADED; two good scrapes end it."""
    machine = ready()
    states = [machine.see(OK, metrics=broken) for _ in range(3)]
    assert states == [State.READY, State.READY, State.DEGRADED]
    assert machine.codes == [code]
    assert machine.see(OK, metrics=metrics()) is State.DEGRADED
    assert machine.see(OK, metrics=metrics()) is State.READY


# --- draining -------------------------------------------------------------------------------------


def test_a_drain_is_not_taken_back() -> None:
    """DRAINING stays, whatever is read afterwards, and wants no generation."""
    machine = ready()
    assert machine.see(OK, metrics=metrics(), draining=True) is State.DRAINING
    for health in (OK, REFUSED, DEAD, TIMEOUT):
        assert machine.see(health, metrics=metrics(start=77.0)) is State.DRAINING
        assert machine.wanted() is None


def test_the_timeline_is_kept_and_bounded() -> None:
    """Every change of state is remembered with its reason, up to a limit."""
    machine = ready()
    assert [t.state for t in machine.memory.timeline] == [
        State.LOADING,
        State.SMOKE,
        State.READY,
    ]
    for start in range(200):
        machine.see(OK, metrics=metrics(start=float(10 * start)))
        machine.see(REFUSED)
        machine.to_smoke()
    assert len(machine.memory.timeline) == 64


# --- alarms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "raised"),
    [
        ("bb", False),
        ("bbb", True),
        ("bub", False),
        ("bubub", True),  # unknown is neither
        ("bbgb", False),  # in a row
        ("bbbgg", True),
        ("bbbggg", False),
        ("bbbggbg", True),  # in a row as well
        ("bbbggug", False),
        ("bbbgggbb", False),
        ("ggg", False),
    ],
)
def test_an_alarm_counts_verdicts_in_a_row(seen: str, raised: bool) -> None:
    """Three bad ones raise it, three good ones clear it, and what is unknown counts for neither."""
    outcomes = {"b": Outcome.BAD, "g": Outcome.GOOD, "u": Outcome.UNKNOWN}
    alarm = Alarm()
    for letter in seen:
        alarm = alarm.after(outcomes[letter], 3, 3)
    assert alarm.raised is raised


# --- several engines ------------------------------------------------------------------------------


def two(busy_tokens: float, idle_tokens: float = 0.0) -> Exposition:
    """Engine 0 at work, engine 1 idle."""
    return metrics(sample(busy_tokens, running=1, engine="0"), sample(idle_tokens, engine="1"))


def idle_beside_busy(machine: Machine, seconds: int, idle_tokens: float = 0.0) -> Want | None:
    """Time passes in which engine 0 moves; the first generation that is wanted, if any."""
    for _ in range(0, seconds, 5):
        machine.see(OK, metrics=two(machine.now * 10, idle_tokens))
        want = machine.wanted()
        if want is not None:
            return want
    return None


def without_engines(machine: Machine) -> Machine:
    """A machine that has seen no engine yet."""
    machine.memory = replace(machine.memory, engines={})
    return machine


@pytest.mark.parametrize("labels", [("a", "b"), ("0", "b")])
def test_engines_without_numbers_are_not_chosen(labels: tuple[str, str]) -> None:
    """The header takes ranks; where labels are none, the choice is the server's."""
    machine = without_engines(ready())
    for second in range(0, 120, 5):
        busy, idle = sample(float(second), running=1, engine=labels[0]), sample(engine=labels[1])
        machine.see(OK, metrics=metrics(busy, idle))
        assert machine.wanted() is None


def test_the_other_engines_answer_does_not_clear_the_silent_one() -> None:
    """A canary that engine 1 did not answer stays a question until engine 1 moves."""
    machine = ready()
    assert idle_beside_busy(machine, 120) is not None
    silent = replace(machine.generation(SILENT, step=Step.CANARY, lasting=30), engine="1")
    machine.see(OK, metrics=two(1e6), generation=silent)
    machine.see(OK, metrics=two(1e6 + 1), generation=machine.generation(step=Step.CANARY))
    assert machine.memory.record("1").unanswered_since is not None
    retried = machine.wanted()
    assert retried is not None and retried.engine == "1"
    machine.see(OK, metrics=two(1e6 + 2, 8.0))
    assert machine.memory.record("1").unanswered_since is None


# --- when to look again ---------------------------------------------------------------------------


def test_the_end_of_a_budget_is_not_waited_past() -> None:
    """The reading that finds a budget over comes when it is over, not up to an interval later."""
    machine = ready(readiness_budget_s=12.0)
    machine.see(OK, metrics=metrics(sample(100, running=1)))
    looks = []
    while machine.memory.state is State.READY:
        wait = next_look_s(machine.memory, machine.policy)
        looks.append(wait)
        machine.see(OK, metrics=metrics(sample(100, running=1)), after=wait)
    assert machine.memory.state is State.NOT_READY
    assert looks == [5.0, 5.0, 2.0]


def test_a_canary_is_sent_when_it_is_due() -> None:
    """The turn that asks an idle engine comes at the age that asks for it."""
    machine = ready(canary_after_s=7.0)
    while machine.wanted() is None:
        machine.see(OK, metrics=metrics(), after=next_look_s(machine.memory, machine.policy))
    assert machine.memory.evidence_age_s(machine.now) == pytest.approx(7.0, abs=1.4 + 1.0)


def test_the_gate_has_a_limit() -> None:
    """A round takes no longer than the time-outs of all that it may ask; steps left out do not
    count."""
    health = Health(warmup_timeout_s=900.0, generation_timeout_s=180.0)
    warm_up, probe, second_seed, top_p, at_once = 900.0, 180.0, 180.0, 900.0, 900.0
    question = 3 * 180.0
    long = 3 * 900.0 + 3 * 180.0  # each of three needles may be missed once
    assert gate_limit_s(health) == warm_up + probe + second_seed + top_p + question + long + at_once
    short = replace(health, long_prompt_tokens=(), gate_requests=1)
    assert gate_limit_s(short) == warm_up + probe + second_seed + top_p + question


# --- faults that begin under traffic --------------------------------------------------------------


def test_hidden_metrics_and_a_silent_canary_are_no_hang_while_work_goes_on() -> None:
    """A long prefill, then /metrics 500: the age of evidence decides, not the readiness budget."""
    machine = ready()
    for i in range(12):
        machine.see(OK, metrics=metrics(sample(running=1, cache=i / 1000)))
    broken = Failure(FailureKind.MALFORMED, "500")
    began = machine.now
    asked = machine.outstanding(began)
    while machine.now - began < 240:
        state = machine.see(OK, metrics=broken, outstanding=asked)
        assert state in (State.READY, State.DEGRADED), machine.codes
    for _ in range(40):
        machine.see(OK, metrics=broken, outstanding=machine.outstanding(began))
    assert machine.memory.state is State.NOT_READY
    assert "evidence.stale" in machine.codes


def canary(machine: Machine, outcome: Outcome, chance: float) -> Generation:
    sampling = Finding("sampling", outcome, "sampling.greedy", {CHANCE: chance})
    return machine.generation((*GOOD, sampling))


def test_canaries_of_top_tokens_only_are_greedy_together() -> None:
    """One canary of likely tokens tells nothing; several together beyond 1e-8 are bad, in the end
    NOT_READY; one token that is no top one clears them."""
    machine = ready()
    for _ in range(2):
        state = machine.see(
            OK, metrics=metrics(), generation=canary(machine, Outcome.UNKNOWN, 1e-3)
        )
        assert state is State.READY
    unlikely = canary(machine, Outcome.GOOD, 1e-3)
    machine.see(OK, metrics=metrics(), generation=unlikely)
    assert machine.memory.record(ANY).argmax_chance == 1.0
    states = []
    for _ in range(5):
        made = canary(machine, Outcome.UNKNOWN, 1e-3)
        states.append(machine.see(OK, metrics=metrics(), generation=made))
    assert states == [State.READY] * 2 + [State.DEGRADED] * 2 + [State.NOT_READY]
    assert machine.codes == ["sampling.greedy"]
