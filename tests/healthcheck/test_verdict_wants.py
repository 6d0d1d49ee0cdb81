"""What the state machine asks for, of which engine, and when it looks again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from deploy.recipe import Health
from healthcheck.client.answers import Failure, FailureKind
from healthcheck.client.exposition import Exposition, Speculation
from healthcheck.client.listing import Listing
from healthcheck.judge import CHANCE, Finding, Outcome, Step
from healthcheck.verdict import (
    ANY,
    CANARY_JITTER,
    RECHECK_S,
    Generation,
    Memory,
    Outstanding,
    Policy,
    Record,
    State,
    Want,
    begin,
    next_look_s,
)
from tests.support.verdict_machine import (
    DENIED,
    GOOD,
    LISTED,
    MODEL,
    NAN,
    OK,
    REFUSED,
    SILENT,
    Machine,
    metrics,
    ready,
    sample,
)

BROKEN = Failure(FailureKind.MALFORMED, "500")
HEALTH = Health()


def look(machine: Machine) -> float:
    return next_look_s(machine.memory, machine.policy)


def down(machine: Machine) -> Machine:
    """NOT_READY for work without a step; the port and the text are good."""
    while machine.memory.state is not State.NOT_READY:
        machine.see(OK, metrics=metrics(sample(running=1)))
    return machine


# --- when to look again ---------------------------------------------------------------------------


def test_a_port_that_is_shut_while_loading_is_looked_at_soon() -> None:
    """The moment the port opens the start's next phase begins."""
    machine = Machine()
    for _ in range(5):
        machine.see(REFUSED)
    assert (machine.memory.state, look(machine)) == (State.LOADING, RECHECK_S)


def test_the_gate_is_looked_at_soon() -> None:
    """Each step of the gate begins when the one before is over."""
    machine = Machine()
    machine.to_smoke()
    assert look(machine) == RECHECK_S


@pytest.mark.parametrize("bad", [1, 2])
def test_bad_verdicts_under_way_are_settled_soon(bad: int) -> None:
    """Between the first bad verdict and the third every reading counts."""
    port, text = ready(), ready()
    for _ in range(bad):
        port.see(REFUSED, after=1)
        text.see(OK, metrics=metrics(), generation=text.generation(NAN))
    assert look(port) == look(text) == RECHECK_S


def test_what_is_settled_is_looked_at_at_the_ordinary_pace() -> None:
    """Once a server is out of service for its text, or its port, it need not be hurried."""
    port, text = ready(), ready()
    for _ in range(3):
        port.see(REFUSED, after=1)
        text.see(OK, metrics=metrics(), generation=text.generation(NAN))
    assert port.memory.state is text.memory.state is State.NOT_READY
    assert look(port) == look(text) == HEALTH.scrape_interval_s


def test_a_recovery_under_way_is_settled_soon() -> None:
    """The first good verdict of NOT_READY hurries the second; none at all does not."""
    machine = down(ready())
    assert look(machine) == HEALTH.scrape_interval_s
    machine.see(OK, metrics=metrics(sample(tokens=9)))
    assert machine.codes[0] == "recovery.pending"
    assert look(machine) == RECHECK_S


def test_an_interval_under_a_second_is_kept() -> None:
    """No look comes later than the scrape interval, however soon is soon."""
    machine = ready(scrape_interval_s=0.5)
    machine.see(REFUSED)
    assert look(machine) == 0.5


def test_old_evidence_of_a_busy_server_hurries_nothing() -> None:
    """While work goes on, or is being asked for, no canary comes due that a look must not miss."""
    machine = ready(canary_after_s=7.0)
    machine.see(OK, metrics=metrics(sample(tokens=5, running=1)))
    machine.see(OK, metrics=BROKEN, after=4.0)
    assert machine.memory.busy
    assert look(machine) == HEALTH.scrape_interval_s
    idle = ready(canary_after_s=7.0)
    running = Outstanding(Step.CANARY, idle.memory.epoch, idle.now)
    idle.see(OK, metrics=metrics(), after=4.0, outstanding=running)
    assert look(idle) == HEALTH.scrape_interval_s
    idle.see(OK, metrics=metrics(), after=0.1)
    assert look(idle) < HEALTH.scrape_interval_s


# --- canaries -------------------------------------------------------------------------------------


def idle_age(memory: Memory) -> float:
    """The age of evidence at which an idle server's canary is wanted, to a tenth of a second."""
    machine = Machine(memory=memory).to_ready()
    proven = machine.memory.proven_at
    assert proven is not None
    while machine.wanted() is None:
        machine.now += 0.1
        assert machine.now - proven < 1000
    return machine.now - proven


def test_the_jitter_of_canaries_keeps_its_width() -> None:
    """Over many services the ages fill 80 to 120 % of canary_after_s, and no more."""
    ages = [idle_age(begin(0.0, seed)) / HEALTH.canary_after_s for seed in range(60)]
    assert min(ages) >= 1 - CANARY_JITTER and max(ages) <= 1 + CANARY_JITTER + 0.003
    assert min(ages) < 0.85 and max(ages) > 1.15
    assert 0.95 < sum(ages) / len(ages) < 1.05


def test_every_canary_has_a_prompt_and_an_age_of_its_own() -> None:
    """No cache can answer the next one, and two services that began together drift apart."""
    machine = ready()
    seen = []
    for _ in range(4):
        proven = machine.now
        while machine.wanted() is None:
            machine.see(OK, metrics=metrics(), after=0.25)
        want = machine.wanted()
        assert want is not None and want.epoch == machine.memory.epoch
        seen.append((want.nonce, want.seed, machine.now - proven))
        machine.see(OK, metrics=metrics(), generation=machine.generation(step=want.step))
    for column in zip(*seen, strict=True):
        assert len(set(column)) == 4


def test_a_canary_of_an_idle_server_has_its_own_time() -> None:
    """Idle: canary_timeout_s and canary_tokens; it is not scored."""
    machine = ready()
    while machine.wanted() is None:
        machine.see(OK, metrics=metrics())
    want = machine.wanted()
    assert want is not None and not want.scored
    assert (want.tokens, want.timeout_s) == (HEALTH.canary_tokens, HEALTH.canary_timeout_s)


def idle_hour(machine: Machine, *names: str, beside: str = "") -> list[tuple[float, Want]]:
    """What idle engines are asked for in an hour, and when; each answer is a step of its engine.
    `beside` is an engine that works."""
    asked: list[tuple[float, Want]] = []
    tokens = dict.fromkeys((*names, *filter(None, [beside])), 100.0)
    ends = machine.now + 3600
    while machine.now < ends:
        want, made = machine.wanted(), None
        if want is not None:
            asked.append((machine.now, want))
            made = machine.generation(step=want.step, tokens=(machine.readings, 5, 6))
            made = replace(made, engine=want.engine)
            tokens[want.engine or names[0]] += want.tokens
        if beside:
            tokens[beside] += 50
        seen = [sample(t, float(name == beside), engine=name) for name, t in tokens.items()]
        machine.see(OK, metrics=metrics(*seen), generation=made)
    return asked


def test_an_idle_engine_is_judged_in_full_now_and_then() -> None:
    """The first canary after idle_check_after_s is a generation as long as the gate's, scored, over
    a prompt whose words it must go on in, with the time of a gate's probe."""
    machine = ready()
    began = machine.now
    asked = idle_hour(machine, "0")
    checks = [(at, want) for at, want in asked if want.step is Step.IDLE]
    assert {want.step for _, want in asked} == {Step.CANARY, Step.IDLE}
    times = [began, *[at for at, _ in checks]]
    apart = [after - before for before, after in pairwise(times)]
    assert len(checks) == 5
    assert min(apart) >= HEALTH.idle_check_after_s
    assert max(apart) <= HEALTH.idle_check_after_s + 2 * HEALTH.canary_after_s
    for _, want in checks:
        assert want.scored and want.prompt_tokens == 300
        assert (want.tokens, want.timeout_s) == (HEALTH.gate_tokens, HEALTH.generation_timeout_s)
    assert len({want.nonce for _, want in asked}) == len(asked)


def test_every_idle_engine_is_judged_in_full_by_itself() -> None:
    """That the gate's texts came from another engine, which works, says nothing about this one."""
    machine = ready()
    asked = idle_hour(machine, "1", "2", beside="0")
    for engine in ("1", "2"):
        own = [want for _, want in asked if want.engine == engine]
        assert own[0].step is Step.IDLE and own[0].rank == int(engine)
        assert 5 <= sum(want.step is Step.IDLE for want in own) <= 6


def test_only_a_rested_and_undoubted_engine_is_judged_in_full() -> None:
    """The canary beside traffic without end, one after a bad answer, one while /metrics is hidden
    and one after silence stay as short as ever."""
    machine = ready(idle_check_after_s=1.0)

    def due(**fields: object) -> Step:
        changed = replace(machine, memory=replace(machine.memory, **fields))  # type: ignore[arg-type]
        want = changed.wanted()
        assert want is not None
        return want.step

    machine.see(OK, metrics=metrics(sample(100)), after=1)
    machine.see(OK, metrics=metrics(sample(100)), after=100)
    assert due() is Step.IDLE
    assert due(sampled_at=machine.now - 100) is Step.CANARY
    for record in (
        Record(judged=(False,)),
        Record(unanswered_since=machine.now - 1),
        Record(scored_at=machine.now - 0.5),
    ):
        assert due(records={ANY: record}) is Step.CANARY
    while machine.wanted() is None or machine.memory.evidence_age_s(machine.now):
        busy = sample(machine.now, running=1)
        machine.see(OK, metrics=metrics(busy))
    assert due() is Step.CANARY


def test_a_model_that_understands_nothing_is_not_asked_to_read_when_idle() -> None:
    """`known_answers` false, or no room for it: a short prompt, judged by all else."""
    for machine in (ready(known_answers=False), Machine()):
        if machine.memory.state is not State.READY:
            machine.see(OK, listing=Listing((MODEL,), 256), metrics=metrics())
            machine.pass_gate()
        checks = [want for _, want in idle_hour(machine, "0") if want.step is Step.IDLE]
        assert checks and {want.prompt_tokens for want in checks} == {0}


def test_a_canary_waits_for_nothing_that_is_still_running() -> None:
    """One generation at a time, and none while the port is in doubt."""
    machine = ready()
    machine.see(OK, metrics=metrics(), after=100, outstanding=machine.outstanding(machine.now))
    assert machine.wanted() is None
    machine.see(REFUSED, after=1)
    assert machine.wanted() is None
    machine.see(OK, metrics=metrics(), after=1)
    assert machine.wanted() is not None


def test_hidden_metrics_make_busy_a_guess_that_grows_old() -> None:
    """With /metrics gone for canary_after_s, work that was seen before spares no canary."""
    machine = ready()
    machine.see(OK, metrics=metrics(sample(tokens=5, running=1)))
    seen = machine.now
    machine.see(OK, metrics=BROKEN)
    while machine.wanted() is None:
        machine.see(OK, metrics=BROKEN, after=1)
    assert machine.now - seen >= HEALTH.canary_after_s * (1 - CANARY_JITTER)
    hidden = ready()
    hidden.memory = replace(hidden.memory, sampled_at=None)
    assert hidden.wanted() is None


def test_a_server_that_never_showed_its_metrics_gets_canaries() -> None:
    """Without one scrape since the start, idle is told by the age of evidence alone."""
    machine = Machine()
    machine.see(OK, listing=LISTED, metrics=BROKEN)
    machine.pass_gate(BROKEN)
    assert machine.memory.state in (State.READY, State.DEGRADED)
    assert machine.memory.sampled_at is None and machine.wanted() is None
    machine.see(OK, metrics=BROKEN, after=60)
    want = machine.wanted()
    assert want is not None and want.step is Step.CANARY


# --- recoveries -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("running", "timeout_s"), [(0.0, HEALTH.canary_timeout_s), (1.0, HEALTH.generation_timeout_s)]
)
def test_a_recovery_has_the_time_that_the_work_before_it_takes(
    running: float, timeout_s: float
) -> None:
    """Alone it is answered as soon as a canary, behind queued work as late as a gate's probe."""
    machine = down(ready())
    machine.see(OK, metrics=metrics(sample(tokens=9, running=running)))
    want = machine.wanted()
    assert want is not None and want.step is Step.RECOVERY
    assert (want.timeout_s, want.tokens) == (timeout_s, HEALTH.canary_tokens)


def test_a_recovery_from_another_cause_stays_short() -> None:
    """Only acceptance that is bad needs as many drafts as a probe makes, and only if opted in."""
    opted_in = down(ready(acceptance_effect="not-ready"))
    opted_in.see(OK, metrics=metrics(sample(tokens=9)))
    want = opted_in.wanted()
    assert want is not None and want.tokens == HEALTH.canary_tokens
    machine = ready()
    for turn in range(1, 10):
        spec = Speculation(200.0 * turn, 800.0 * turn, 0, (0, 0, 0, 0))
        machine.see(OK, metrics=metrics(sample(tokens=turn, running=1, spec=spec)))
    assert machine.codes == ["acceptance.low"]
    for _ in range(3):
        machine.see(OK, metrics=metrics(sample(9, spec=spec)), generation=machine.generation(NAN))
    machine.see(OK, metrics=metrics(sample(9, spec=spec)))
    want = machine.wanted()
    assert want is not None and want.step is Step.RECOVERY
    assert want.tokens == HEALTH.canary_tokens


def test_a_passed_recovery_is_not_asked_for_twice() -> None:
    """After the good generation one more look settles it, so nothing more is asked."""
    machine = down(ready(good_verdicts=3))
    made = machine.generation(step=Step.RECOVERY)
    assert machine.see(OK, metrics=metrics(sample(9)), generation=made) is State.NOT_READY
    machine.now += 60
    assert machine.wanted() is None


# --- which engine ---------------------------------------------------------------------------------


def engines(**work: tuple[float, float]) -> Exposition:
    """Engines by name without its `e`: tokens so far and requests that run."""
    return metrics(
        *[sample(tokens, running, engine=name[1:]) for name, (tokens, running) in work.items()]
    )


def test_the_engine_that_wrote_what_was_bad_is_asked_again() -> None:
    """Another engine's good text would clear it otherwise."""
    machine = ready()
    seen = engines(e0=(0, 0), e1=(0, 0))
    machine.see(OK, metrics=seen)
    made = replace(machine.generation(NAN), engine="1")
    machine.see(OK, metrics=seen, generation=made)
    want = machine.wanted()
    assert want is not None and (want.engine, want.rank) == ("1", 1)


def test_the_engine_that_is_silent_is_asked_before_one_that_wrote_what_was_bad() -> None:
    """Also when it was the other that was asked longest ago."""
    machine = ready()
    seen = engines(e0=(0, 0), e1=(0, 0))
    machine.see(OK, metrics=seen)
    for engine, told in (("0", NAN), ("1", SILENT)):
        machine.see(OK, metrics=seen, generation=replace(machine.generation(told), engine=engine))
    want = machine.wanted()
    assert want is not None and want.engine == "1"


def test_what_was_bad_without_a_choice_is_asked_without_one() -> None:
    """Where the server chose the engine it may choose again."""
    machine = ready()
    seen = engines(e0=(0, 0), e1=(0, 0))
    machine.see(OK, metrics=seen)
    machine.see(OK, metrics=seen, generation=machine.generation(NAN))
    want = machine.wanted()
    assert want is not None and (want.engine, want.rank) == (None, None)


def test_of_two_stuck_engines_the_one_stuck_for_longer_is_asked() -> None:
    """The worst engine decides, so it is the one to ask."""
    machine = ready()
    machine.see(OK, metrics=engines(e0=(0, 0), e1=(0, 1), e2=(0, 0)))
    for _ in range(4):
        machine.see(OK, metrics=engines(e0=(0, 0), e1=(0, 1), e2=(0, 1)))
    while machine.memory.state is not State.NOT_READY:
        machine.see(OK, metrics=engines(e0=(0, 0), e1=(0, 1), e2=(0, 1)))
    machine.see(OK, metrics=engines(e0=(0, 0), e1=(0, 1), e2=(0, 1)))
    want = machine.wanted()
    assert want is not None and (want.engine, want.rank) == ("1", 1)


def test_of_two_idle_engines_the_one_unasked_for_longest_is_asked() -> None:
    """Beside a busy engine the idle ones take turns."""
    machine = ready()
    machine.see(OK, metrics=engines(e0=(0, 1), e1=(0, 0), e2=(0, 0)))
    asked: list[str | None] = []
    for turn in range(1, 55):
        made = None
        want = machine.wanted()
        if want is not None:
            asked.append(want.engine)
            made = replace(machine.generation(step=want.step), engine=want.engine)
        working = 10.0 * turn
        machine.see(OK, metrics=engines(e0=(working, 1), e1=(0, 0), e2=(0, 0)), generation=made)
    assert {"1", "2"} == set(asked)
    assert all(a != b for a, b in pairwise(asked))


def test_ranks_count_by_number() -> None:
    """Engine 10 comes after engine 9, though not in the alphabet."""
    machine = ready()
    machine.memory = replace(machine.memory, engines={})
    want = None
    for turn in range(30):
        machine.see(OK, metrics=engines(e10=(0, 0), e9=(turn, 1)))
        want = want or machine.wanted()
    assert want is not None and (want.engine, want.rank) == ("10", 1)


def test_one_engine_alone_is_never_chosen() -> None:
    """Where there is no choice no header says one, whoever is in doubt."""
    machine = ready()
    machine.see(OK, metrics=metrics())
    made = replace(machine.generation(SILENT), engine="0")
    machine.see(OK, metrics=metrics(), generation=made)
    assert machine.memory.record("0").unanswered_since is not None
    want = machine.wanted()
    assert want is not None and (want.engine, want.rank) == (None, None)


def test_a_stalled_engine_is_asked_whether_it_lives() -> None:
    """Each canary that it does not answer is followed by the next, to the same engine."""
    machine = ready()
    both = engines(e0=(0, 0), e1=(0, 0))
    machine.see(OK, metrics=both)
    while machine.memory.state is not State.STALLED:
        silent = replace(machine.generation(SILENT), engine="1")
        machine.see(OK, metrics=both, generation=silent)
    want = machine.wanted()
    assert want is not None
    assert (want.step, want.engine, want.rank) == (Step.CANARY, "1", 1)
    assert (want.tokens, want.timeout_s) == (HEALTH.canary_tokens, HEALTH.canary_timeout_s)


def test_an_answer_of_an_engine_that_left_is_taken() -> None:
    """It may be the last that is heard of that engine."""
    machine = ready()
    machine.see(OK, metrics=engines(e0=(0, 0), e1=(0, 0)))
    made = replace(machine.generation(), engine="1")
    assert machine.see(OK, metrics=engines(e0=(0, 0)), generation=made) is State.READY
    assert machine.memory.record("1").read_at == made.ended_at


def test_a_silent_engine_that_left_is_not_asked_for() -> None:
    """A canary that a gone engine owes does not choose among those that are left."""
    machine = ready()
    both = engines(e0=(0, 0), e1=(0, 0))
    machine.see(OK, metrics=both)
    made = replace(machine.generation(SILENT), engine="1")
    machine.see(OK, metrics=both, generation=made)
    for _ in range(HEALTH.bad_verdicts):
        machine.see(OK, metrics=engines(e0=(0, 0)))
    machine.now += 60
    want = machine.wanted()
    assert want is not None and (want.engine, want.rank) == ("0", 0)


def test_a_refused_canary_is_not_repeated_at_once() -> None:
    """A canary that told nothing is no bad one: the next comes at its own time."""
    machine = ready()
    made = machine.generation(DENIED)
    assert made.outcome is Outcome.UNKNOWN
    machine.see(OK, metrics=metrics(), generation=made, after=1)
    assert machine.wanted() is None


# --- the gate -------------------------------------------------------------------------------------


def test_every_step_of_the_gate_asks_for_its_own() -> None:
    """Prompt, seed, lengths, time and number of requests of each step, scored but the warm-up."""
    machine = Machine()
    machine.to_smoke()
    probe, long = HEALTH.generation_timeout_s, HEALTH.warmup_timeout_s
    wanted = machine.pass_gate()
    assert wanted == [
        Want(Step.WARM_UP, 1, "1-1-warm-up", 3, 64, long),
        Want(Step.PROBE, 1, "1-1", 3, 64, probe),
        Want(Step.SECOND_SEED, 1, "1-1", 4, 64, probe),
        Want(Step.TOP_P, 1, "1-1-top-p", 3, 32, long, prompt_tokens=300, requests=2),
        Want(Step.QUESTION, 1, "1-1-question-1", 3, 512, probe),
        Want(Step.LONG, 1, "1-1-long-1500-1", 3, 64, long, prompt_tokens=1500),
        Want(Step.LONG, 1, "1-1-long-8000-1", 3, 64, long, prompt_tokens=8000),
        Want(Step.LONG, 1, "1-1-long-16064-1", 3, 320, long, prompt_tokens=16064),
        Want(Step.AT_ONCE, 1, "1-1-at-once", 3, 64, long, requests=4),
    ]
    assert [want.scored for want in wanted] == [False] + [True] * 8


def test_two_at_once_are_several() -> None:
    """From two on the gate has its last step, with as many requests as it is told."""
    machine = Machine(Policy(replace(HEALTH, gate_requests=2), MODEL))
    machine.to_smoke()
    requests = {want.step: want.requests for want in machine.pass_gate()}
    assert {step for step, count in requests.items() if count == 2} == {Step.TOP_P, Step.AT_ONCE}


def test_another_round_of_the_gate_has_other_prompts_and_seeds() -> None:
    """Nothing that was asked before can answer the next round from a cache."""
    machine = Machine()
    machine.to_smoke()
    machine.see(OK, metrics=metrics(), generation=machine.generation(step=Step.WARM_UP))
    first = machine.wanted()
    machine.see(OK, metrics=metrics(), generation=machine.generation(NAN, Step.PROBE))
    machine.now += 60
    second = machine.wanted()
    assert first is not None and second is not None
    assert (first.nonce, first.seed) == ("1-1", 3)
    assert (second.nonce, second.seed) == ("1-2", 5)


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        (None, [(1500, 64), (8000, 320)]),
        (100_000, [(1500, 64), (8000, 64), (32_000, 320)]),
        (32_320, [(1500, 64), (8000, 64), (32_000, 320)]),
        (32_319, [(1500, 64), (8000, 64), (31_999, 320)]),
        (9920, [(1500, 64), (8000, 320)]),  # 9,600 are not much longer
        (8319, [(1500, 64), (7999, 320)]),
        (2120, [(1500, 320)]),
        (1023, [(768, 255)]),
        (512, [(384, 128)]),
        (511, []),
    ],
)
def test_the_long_prompts_fit_into_the_context(
    context: int | None, expected: list[tuple[int, int]]
) -> None:
    """A quarter of a short context is left for the answer; one too short has no long step."""
    machine = Machine()
    machine.see(OK, listing=Listing((MODEL,), context), metrics=metrics())
    long = [want for want in machine.pass_gate() if want.step is Step.LONG]
    assert [(want.prompt_tokens, want.tokens) for want in long] == expected
    assert context is None or all(want.prompt_tokens + want.tokens <= context for want in long)


MISSED = (Finding("needle", Outcome.BAD, "text.needle_missed", {"needle": "123456"}),)


def climb(machine: Machine, found: Callable[[Want], bool]) -> list[tuple[int, str, int]]:
    """One round of the gate against a model that finds what `found` says: length, nonce and seed
    of each long prompt that was asked."""
    asked = []
    while not machine.memory.gate.failures and machine.memory.state is State.SMOKE:
        want = machine.wanted()
        assert want is not None, "a missed needle is asked for again at once"
        findings = GOOD
        if want.step is Step.LONG:
            asked.append((want.prompt_tokens, want.nonce, want.seed))
            findings = GOOD if found(want) else MISSED
        made = machine.generation(findings, want.step, tokens=(machine.readings, 5, 6))
        machine.see(OK, metrics=metrics(), generation=made)
    return asked


def test_a_needle_missed_once_is_asked_for_again() -> None:
    """In another prompt of the same length, with another seed; found there the gate goes on."""
    machine = Machine()
    machine.to_smoke()
    missed_first = {1500, 16_064}
    asked = climb(
        machine, lambda w: not (w.prompt_tokens in missed_first and w.nonce.endswith("-1"))
    )
    assert machine.memory.state is State.READY
    assert [length for length, _, _ in asked] == [1500, 1500, 8000, 16_064, 16_064]
    assert len({nonce for _, nonce, _ in asked}) == len(asked)
    assert asked[0][2] != asked[1][2]


@pytest.mark.parametrize(
    ("reads", "code", "evidence"),
    [
        (0, "text.needle_missed", {"found_at": [], "missed_at": 1500}),
        (2048, "text.needle_missed_past_2048", {"found_at": [1500], "missed_at": 8000}),
        (8000, "text.needle_missed_past_2048", {"found_at": [1500, 8000], "missed_at": 16_064}),
    ],
)
def test_the_needles_are_judged_together(reads: int, code: str, evidence: object) -> None:
    """Missed twice at the shortest it is no matter of length; found there and missed in a longer
    prompt it is what attention picks past 2,048 tokens. Nothing longer is asked then."""
    machine = Machine()
    machine.to_smoke()
    asked = climb(machine, lambda w: w.prompt_tokens <= reads)
    assert machine.codes == [code, "gate.failed"]
    assert asked[-1][0] == asked[-2][0] and len(asked) == len({a for a, _, _ in asked}) + 1
    (finding,) = machine.memory.gate.bad
    assert finding.evidence == {**evidence, "needle": "123456"}  # type: ignore[dict-item]
    assert (machine.memory.gate.rung, machine.memory.gate.misses) == (0, 0)


def test_a_long_prompt_that_reads_as_garbage_is_not_asked_again() -> None:
    """Only a needle may be missed by chance; anything else that is bad fails the gate at once."""
    machine = Machine()
    machine.to_smoke()
    garbage = (*MISSED, Finding("legible", Outcome.BAD, "text.garbage"))
    while not machine.memory.gate.failures:
        want = machine.wanted()
        assert want is not None
        findings = garbage if want.step is Step.LONG else GOOD
        made = machine.generation(findings, want.step, tokens=(machine.readings, 5, 6))
        machine.see(OK, metrics=metrics(), generation=made)
    assert machine.codes == ["text.needle_missed", "text.garbage", "gate.failed"]


WRONG = (Finding("question", Outcome.BAD, "question.wrong"),)
UNTOLD = (Finding("question", Outcome.UNKNOWN, "question.untold"),)


def asked(machine: Machine, *answers: tuple[Finding, ...]) -> list[Want]:
    """The questions of a gate that is good besides, answered so; the last answer again and again."""
    wants: list[Want] = []
    machine.to_smoke()
    while not machine.memory.gate.failures and machine.memory.state is State.SMOKE:
        want = machine.wanted()
        assert want is not None
        findings = GOOD
        if want.step is Step.QUESTION:
            findings = answers[min(len(wants), len(answers) - 1)]
            wants.append(want)
        made = machine.generation(findings, want.step, tokens=(machine.readings, 5, 6))
        machine.see(OK, metrics=metrics(), generation=made)
    return wants


def test_a_question_answered_wrongly_is_asked_three_times() -> None:
    """Other sums with another seed each time; wrong three times they hold the gate."""
    machine = Machine()
    wants = asked(machine, WRONG)
    assert [(want.nonce, want.seed) for want in wants] == [
        ("1-1-question-1", 3),
        ("1-1-question-2", 4),
        ("1-1-question-3", 5),
    ]
    assert machine.codes == ["question.wrong", "gate.failed"]
    assert machine.memory.gate.misses == 0


@pytest.mark.parametrize("last", [GOOD, UNTOLD, SILENT, DENIED])
def test_only_a_third_wrong_answer_holds_the_gate(last: tuple[Finding, ...]) -> None:
    """Two may be chance; what is not answered, or not in time, tells nothing and blocks nothing."""
    machine = Machine()
    assert len(asked(machine, WRONG, WRONG, last)) == 3
    assert machine.memory.gate.passed and machine.memory.gate.findings[Step.QUESTION] == last


@pytest.mark.parametrize(
    ("context", "known_answers", "asks"),
    [(None, True, 1), (2048, True, 1), (2047, True, 0), (None, False, 0)],
)
def test_who_has_no_room_or_no_sense_is_asked_no_sums(
    context: int | None, known_answers: bool, asks: int
) -> None:
    """Random weights (known_answers false) reckon nothing, and a short context cuts an answer off."""
    machine = Machine(Policy(replace(HEALTH, known_answers=known_answers), MODEL))
    machine.see(OK, listing=Listing((MODEL,), context), metrics=metrics())
    assert [want.step for want in machine.pass_gate()].count(Step.QUESTION) == asks


def test_the_seconds_of_all_long_prompts_are_one_step() -> None:
    """What reports show as the long step is the time of every prompt in it, in one round."""
    machine = Machine()
    machine.to_smoke()
    machine.pass_gate()
    assert machine.memory.gate.took[Step.LONG] == 3 * machine.memory.gate.took[Step.PROBE]


def test_a_warm_up_without_an_answer_is_asked_again_after_an_interval() -> None:
    """Not at once: a server that is busy compiling is not stormed."""
    machine = Machine()
    machine.to_smoke()
    machine.see(OK, metrics=metrics(), generation=machine.generation(SILENT, Step.WARM_UP))
    machine.now += HEALTH.scrape_interval_s - 1
    assert machine.wanted() is None
    machine.now += 1
    want = machine.wanted()
    assert want is not None and want.step is Step.WARM_UP


def test_an_error_warms_up_as_well() -> None:
    """The warm-up is there to compile: what it answers is not judged."""
    machine = Machine()
    machine.to_smoke()
    machine.see(OK, metrics=metrics(), generation=machine.generation(NAN, Step.WARM_UP))
    want = machine.wanted()
    assert want is not None and want.step is Step.PROBE


def test_the_last_step_that_fails_again_counts_on() -> None:
    """A gate that is good but for its last step waits ever longer, like any that fails."""
    machine = Machine()
    machine.to_smoke()
    for failures in (1, 2, 3):
        while machine.memory.gate.failures < failures:
            step = machine.memory.gate.step
            assert step is not None
            found = NAN if step is Step.AT_ONCE else GOOD
            made = machine.generation(found, step, tokens=(machine.readings, 5, 6))
            machine.see(OK, metrics=metrics(), generation=made)
        assert machine.memory.gate.failures == failures
        machine.now += 5 * failures - 1
        assert machine.wanted() is None
        machine.now += 1
        assert machine.wanted() is not None
    machine.pass_gate()
    assert machine.memory.gate.failures == 0


def test_a_gate_that_fails_for_long_is_tried_once_a_minute() -> None:
    """The pause between two rounds grows up to a minute and no further."""
    machine = Machine()
    machine.to_smoke()
    machine.see(OK, metrics=metrics(), generation=machine.generation(step=Step.WARM_UP))
    for _ in range(20):
        machine.see(OK, metrics=metrics(), generation=machine.generation(NAN, Step.PROBE))
    machine.now += 59
    assert machine.wanted() is None
    machine.now += 1
    assert machine.wanted() is not None


def test_only_the_second_seed_is_held_against_the_first() -> None:
    """A long answer that begins as the probe's did is no repetition of it."""
    machine = Machine()
    machine.to_smoke()
    while (step := machine.memory.gate.step) is not None:
        same = (7, 8, 9) if step is not Step.SECOND_SEED else (7, 8, 10)
        machine.see(OK, metrics=metrics(), generation=machine.generation(step=step, tokens=same))
    assert machine.memory.state is State.READY


def test_the_gate_keeps_what_it_found_and_how_long_it_took() -> None:
    """Of every step the last findings and its seconds, as reports show them."""
    machine = Machine(Policy(replace(HEALTH, long_prompt_tokens=(7000,)), MODEL))
    machine.to_smoke()
    for count, step in enumerate(machine.memory.gate.steps):
        made = machine.generation(step=step, tokens=(count, 5, 6), lasting=count + 1.5)
        machine.see(OK, metrics=metrics(), generation=made)
    gate = machine.memory.gate
    assert gate.passed and gate.step is None
    assert gate.took == {step: count + 1.5 for count, step in enumerate(gate.steps)}
    second = Finding("second seed", Outcome.GOOD)
    assert gate.findings == {
        Step.PROBE: GOOD,
        Step.SECOND_SEED: (*GOOD, second),
        Step.TOP_P: GOOD,
        Step.QUESTION: GOOD,
        Step.LONG: GOOD,
        Step.AT_ONCE: GOOD,
    }


# --- what an answer, or none, does to the next question -------------------------------------------


def test_an_answer_ends_the_question() -> None:
    """After a canary that timed out, one that is answered leaves nothing open."""
    machine = ready()
    seen = engines(e0=(0, 0), e1=(0, 0))
    machine.see(OK, metrics=seen)
    silent = replace(machine.generation(SILENT), engine="1")
    machine.see(OK, metrics=seen, generation=silent)
    want = machine.wanted()
    assert want is not None and want.engine == "1"
    assert machine.memory.stuck_for(machine.now) > 0
    machine.see(OK, metrics=seen, generation=replace(machine.generation(), engine="1"))
    want = machine.wanted()
    assert want is None or want.engine == "0"  # whose own turn may have come
    assert machine.memory.stuck_for(machine.now) == 0
    assert machine.memory.record("1").unanswered_since is None


def test_the_clock_of_a_wedge_begins_with_the_first_silence() -> None:
    """Canaries given up one after the other are one question, as old as the first of them."""
    machine = ready()
    began = machine.now
    for _ in range(4):
        machine.see(OK, metrics=metrics(), generation=machine.generation(SILENT, lasting=5.0))
    assert machine.memory.record(ANY).unanswered_since == began
    assert machine.memory.stuck_for(machine.now) == 20.0


def test_an_idle_engine_that_was_asked_is_left_alone_though_another_answered() -> None:
    """Where the server chooses by itself the question counts, not who answered it."""
    machine = ready()
    machine.see(OK, metrics=engines(e0=(0, 1), e1=(0, 0)))
    asked_at: list[float] = []
    for turn in range(1, 60):
        want, made = machine.wanted(), None
        if want is not None:
            asked_at.append(machine.now)
            made = replace(machine.generation(step=want.step), engine=want.engine)
        machine.see(OK, metrics=engines(e0=(10.0 * turn, 1), e1=(0, 0)), generation=made)
    assert len(asked_at) >= 3
    least = HEALTH.canary_after_s * (1 - CANARY_JITTER)
    assert all(later - earlier >= least for earlier, later in pairwise(asked_at))


def test_one_readable_answer_ends_blindness() -> None:
    """Three canaries that told nothing are DEGRADED; the first that tells something ends it."""
    machine = ready()
    for _ in range(3):
        machine.see(OK, metrics=metrics(), generation=machine.generation(DENIED))
    assert machine.memory.state is State.DEGRADED
    for told in (GOOD, DENIED):
        assert (
            machine.see(OK, metrics=metrics(), generation=machine.generation(told)) is State.READY
        )


# --- sampling over several canaries ---------------------------------------------------------------


def top_only(machine: Machine, evidence: dict[str, object]) -> Generation:
    sampling = Finding("sampling", Outcome.UNKNOWN, "sampling.greedy", evidence)
    return machine.generation((*GOOD, sampling, Finding("variety", Outcome.GOOD)))


def test_greedy_together_is_found_beside_everything_else() -> None:
    """The canary that makes it incredible keeps its other findings and gets the chance of all."""
    machine = ready()
    for _ in range(3):
        made = top_only(machine, {CHANCE: 1e-3, "tokens": 8})
        machine.see(OK, metrics=metrics(), generation=made)
    last = machine.memory.last_generation
    assert last is not None
    by_check = {found.check: found for found in last.findings}
    assert set(by_check) == {"real tokens", "sampling", "variety"}
    assert by_check["sampling"] == Finding(
        "sampling",
        Outcome.BAD,
        "sampling.greedy",
        {CHANCE: 1e-3, "tokens": 8, "chance_together": pytest.approx(1e-9)},
    )


def test_a_canary_whose_sampling_is_not_told_changes_no_chance() -> None:
    """Without top logprobs, or of equal ones, there is nothing to take together."""
    machine = ready()
    for _ in range(20):
        made = top_only(machine, {"top_logprobs": False})
        assert machine.see(OK, metrics=metrics(), generation=made) is State.READY
    assert machine.memory.record(ANY).argmax_chance == 1.0
