"""What each engine answered to us: k bad ones of n, silence, texts that came before, who is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.recipe import Health
from healthcheck.client.answers import Failure, FailureKind
from healthcheck.client.exposition import EngineSample, Exposition, Speculation
from healthcheck.judge import CHANCE, Completion, Finding, Outcome, Step
from healthcheck.verdict import (
    ANSWERS_PER_BAD,
    ANY,
    MOST_DOUBLINGS,
    TEXTS_KEPT,
    UNREAD_TIMES,
    Generation,
    Outstanding,
    Record,
    State,
    Want,
    next_look_s,
)
from tests.support.verdict_machine import (
    DEAD,
    DENIED,
    GOOD,
    LISTED,
    NAN,
    OK,
    SILENT,
    TIMEOUT,
    Machine,
    metrics,
    ready,
    sample,
)

HEALTH = Health()
LOOKED_AT = ANSWERS_PER_BAD * HEALTH.bad_verdicts
GARBAGE = (
    Finding("real tokens", Outcome.GOOD),
    Finding("variety", Outcome.BAD, "text.one_token", {"distinct": 1}),
)


def judged(letters: str) -> Record:
    """A record after answers: b bad, g good, u unknown."""
    record = Record()
    outcomes = {"b": Outcome.BAD, "g": Outcome.GOOD, "u": Outcome.UNKNOWN}
    for letter in letters:
        record = record.after(outcomes[letter], NAN, HEALTH)
    return record


# --- k of n ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "raised"),
    [
        ("bb", False),
        ("bbb", True),
        ("bgbgb", True),
        ("bgggbgggb", True),  # three among nine
        ("bgggbggggb", False),  # among ten
        ("bubuub", True),  # what told nothing is not counted
        ("bbbgggggggg", True),
        ("bbbggggggggg", False),
        ("bbbggggbggggg", True),  # nine in a row
        ("bbbggggbggggggggg", False),
    ],
)
def test_a_third_of_the_last_answers_is_enough(answers: str, raised: bool) -> None:
    """Three bad ones among nine are out, in a row or not; nine good ones in a row are in again."""
    assert judged(answers).raised is raised


def test_what_relapses_owes_ever_more() -> None:
    """Each time it is out again twice as many must be good, up to 16 times as many."""
    record = Record()
    for fall in range(8):
        record = judged_after(record, "bbb")
        owed = LOOKED_AT * 2 ** min(fall, MOST_DOUBLINGS)
        record = judged_after(record, "g" * (owed - 1))
        assert record.raised
        record = judged_after(record, "g")
        assert not record.raised and not record.doubted


def judged_after(record: Record, letters: str) -> Record:
    for letter in letters:
        outcome = Outcome.BAD if letter == "b" else Outcome.GOOD
        record = record.after(outcome, NAN, HEALTH)
    return record


@given(st.lists(st.booleans(), max_size=80), st.integers(1, 5))
def test_a_record_is_out_from_k_bad_ones_of_n_to_its_run_of_good_ones(
    answers: Sequence[bool], bad_verdicts: int
) -> None:
    """Whatever comes, the record says what counting by hand says."""
    health = replace(HEALTH, bad_verdicts=bad_verdicts)
    n, out, falls, run = ANSWERS_PER_BAD * bad_verdicts, False, 0, 0
    record = Record()
    for count, good in enumerate(answers, start=1):
        record = record.after(Outcome.GOOD if good else Outcome.BAD, NAN, health)
        run = run + 1 if good else 0
        if out:
            out = run < n * 2 ** min(falls - 1, MOST_DOUBLINGS)
        elif [*answers[max(count - n, 0) : count]].count(False) >= bad_verdicts:
            out, falls = True, falls + 1
        assert record.raised is out
        assert record.doubted is (False in answers[max(count - n, 0) : count])


def test_a_doubt_is_degraded_asked_again_at_once_and_over_after_good_answers() -> None:
    """One bad answer by chance: said, and nine canaries in a row at the quick pace clear it."""
    machine = ready()
    machine.see(OK, metrics=metrics(), generation=machine.generation(NAN))
    for _ in range(LOOKED_AT):
        assert (machine.memory.state, machine.codes) == (State.DEGRADED, ["numerics.nan"])
        assert machine.wanted() is not None
        assert next_look_s(machine.memory, machine.policy) == 1.0
        machine.see(OK, metrics=metrics(), generation=machine.generation())
    assert machine.memory.state is State.READY
    assert machine.wanted() is None


def test_a_server_out_for_its_text_is_asked_until_it_owes_nothing() -> None:
    """At the pace of looks, for every answer it owes; only then is it READY again."""
    machine = ready()
    for _ in range(3):
        machine.see(OK, metrics=metrics(), generation=machine.generation(NAN))
    for _ in range(LOOKED_AT):
        assert machine.memory.state is State.NOT_READY and machine.codes[-1] == "numerics.nan"
        assert next_look_s(machine.memory, machine.policy) == HEALTH.scrape_interval_s
        machine.now += 5
        want = machine.wanted()
        assert want is not None and want.step is Step.RECOVERY
        machine.see(OK, metrics=metrics(), generation=machine.generation(step=Step.RECOVERY))
    machine.see(OK, metrics=metrics())
    assert machine.memory.state is State.READY


# --- every engine by itself -----------------------------------------------------------------------


def engines(count: int, at: float = 0.0, work: bool = False, waiting: float = 0.0) -> Exposition:
    """So many engines that have written so much."""
    return metrics(*[sample(at * 10, float(work), waiting, engine=str(n)) for n in range(count)])


def of(machine: Machine, engine: str, found: tuple[Finding, ...], step: Step) -> Generation:
    return replace(machine.generation(found, step), engine=engine)


@pytest.mark.parametrize("count", [8, 16])
def test_under_traffic_without_end_every_engine_is_read_in_turn(count: int) -> None:
    """Each of 8 or 16 busy engines gets a canary by its rank every evidence_max_age_s, no more."""
    machine = ready()
    asked: list[Want] = []
    began = machine.now
    while machine.now - began < 3 * HEALTH.evidence_max_age_s + 6 * count + 30:
        want, made = machine.wanted(), None
        if want is not None:
            asked.append(want)
            assert want.engine is not None
            made = of(machine, want.engine, GOOD, want.step)
        machine.see(OK, metrics=engines(count, machine.now, work=True), generation=made)
    assert [want.rank for want in asked] == [*range(count)] * 3
    assert all(want.engine == str(want.rank) for want in asked)
    assert {want.tokens for want in asked} == {HEALTH.canary_tokens}


def play(machine: Machine, count: int, bad: str, found: tuple[Finding, ...]) -> list[str | None]:
    """Busy engines of which one writes something bad, until NOT_READY; who was asked."""
    asked: list[str | None] = []
    while machine.memory.state is not State.NOT_READY:
        want, made = machine.wanted(), None
        if want is not None:
            asked.append(want.engine)
            assert want.engine is not None
            made = of(machine, want.engine, found if want.engine == bad else GOOD, want.step)
        machine.see(OK, metrics=engines(count, machine.now, work=True), generation=made)
        assert machine.now < 10_000, machine.codes
    return asked


def test_the_recheck_lands_on_the_engine_in_doubt() -> None:
    """From its first bad answer on only engine 3 is asked, and it is named."""
    machine = ready()
    asked = play(machine, 8, "3", GARBAGE)
    assert asked == ["0", "1", "2", "3", "3", "3"]
    assert [str(note) for note in machine.memory.notes] == [
        "text.one_token (variety: distinct 1, engine 3)"
    ]


def test_each_engine_has_its_own_chance_of_top_tokens() -> None:
    """One greedy engine among sampling ones is found: what those draw does not clear it."""
    machine = ready()
    unlikely = (Finding("sampling", Outcome.GOOD, evidence={CHANCE: 1e-3}), *GOOD)
    top = (Finding("sampling", Outcome.UNKNOWN, "sampling.greedy", {CHANCE: 1e-3}), *GOOD)
    machine.see(OK, metrics=engines(2))
    for _ in range(5):
        machine.see(OK, metrics=engines(2), generation=of(machine, "0", unlikely, Step.CANARY))
        machine.see(OK, metrics=engines(2), generation=of(machine, "1", top, Step.CANARY))
    assert machine.memory.state is State.NOT_READY
    assert machine.codes == ["sampling.greedy"]
    assert "engine 1" in machine.memory.notes[0].detail
    assert not machine.memory.record("0").doubted


def test_two_engines_in_doubt_are_asked_in_turn() -> None:
    """Neither is left behind, and both are named."""
    machine = ready()
    machine.see(OK, metrics=engines(4))
    for engine in ("1", "2"):
        machine.see(OK, metrics=engines(4), generation=of(machine, engine, NAN, Step.CANARY))
    asked = []
    while machine.memory.state is not State.NOT_READY or len(asked) < 6:
        machine.now += 5
        want = machine.wanted()
        assert want is not None and want.engine is not None
        asked.append(want.engine)
        machine.see(OK, metrics=engines(4), generation=of(machine, want.engine, NAN, want.step))
    assert asked == ["1", "2"] * 3
    assert machine.codes == ["numerics.nan"] * 2


def test_an_engine_that_is_shown_no_more_is_said() -> None:
    """One scrape without it is nothing, three are DEGRADED; when it is back it owes an answer."""
    machine = ready()
    machine.see(OK, metrics=engines(3))
    two = metrics(sample(engine="0"), sample(engine="2"))
    states = [machine.see(OK, metrics=two) for _ in range(3)]
    assert states == [State.READY, State.READY, State.DEGRADED]
    assert [str(n) for n in machine.memory.notes] == ["engine.vanished (engine 1)"]
    assert machine.memory.ranks == {"0": 0, "1": 1, "2": 2}
    assert machine.memory.keys == ("0", "2")
    assert machine.see(OK, metrics=engines(3)) is State.DEGRADED
    assert [str(n) for n in machine.memory.notes] == [
        "text.unread (not since it is back, engine 1)"
    ]
    while (want := machine.wanted()) is None:
        machine.see(OK, metrics=engines(3))
    assert want.engine == "1"
    made = of(machine, "1", GOOD, want.step)
    assert machine.see(OK, metrics=engines(3), generation=made) is State.READY


def test_of_several_engines_the_one_that_drafts_badly_is_asked_for_its_recovery() -> None:
    """Out for the acceptance of engine 2, only its own drafts can bring the server back."""
    machine = ready(acceptance_effect="not-ready")
    for turn in range(1, 10):
        total = 200.0 * turn
        spec = Speculation(total, 4 * total, 0, (0.0, 0.0, 0.0, 0.0))
        bad = sample(total, 1.0, engine="2", spec=spec)
        machine.see(OK, metrics=metrics(sample(engine="0"), sample(engine="1"), bad))
    assert (machine.memory.state, machine.codes) == (State.NOT_READY, ["acceptance.low"])
    machine.now += 60
    want = machine.wanted()
    assert want is not None
    assert (want.engine, want.rank, want.tokens) == ("2", 2, HEALTH.gate_tokens)


# --- the gate -------------------------------------------------------------------------------------


def gated(count: int) -> Machine:
    """A machine with so many engines, at its gate's last step."""
    machine = Machine()
    machine.see(OK, listing=LISTED, metrics=engines(count))
    while machine.memory.gate.step is not Step.EVERY_ENGINE:
        want = machine.wanted()
        assert want is not None and want.step is not Step.EVERY_ENGINE and not want.ranks
        made = machine.generation(step=want.step)
        machine.see(OK, metrics=engines(count), generation=made)
    return machine


@pytest.mark.parametrize("count", [2, 8, 16])
def test_the_gate_asks_every_engine_at_once(count: int) -> None:
    """The last step is a scored generation of each by its rank; then each was just read."""
    machine = gated(count)
    want = machine.wanted()
    assert want is not None and want.scored
    assert (want.step, want.requests, want.tokens) == (Step.EVERY_ENGINE, count, HEALTH.gate_tokens)
    assert want.ranks == {str(n): n for n in range(count)}
    made = machine.generation(step=want.step)
    assert machine.see(OK, metrics=engines(count), generation=made) is State.READY
    for key in machine.memory.keys:
        assert machine.memory.record(key).read_at == made.ended_at


def test_one_bad_engine_keeps_the_gate_shut() -> None:
    """The round begins again, and the reason names the engine."""
    machine = gated(8)
    found = (Finding("variety", Outcome.BAD, "text.one_token", {"engine": "6"}), *GOOD)
    made = machine.generation(found, step=Step.EVERY_ENGINE)
    assert machine.see(OK, metrics=engines(8), generation=made) is State.SMOKE
    assert machine.codes == ["text.one_token", "gate.failed"]
    assert "engine 6" in machine.memory.notes[0].detail
    assert machine.memory.gate.step is Step.PROBE


def test_engines_that_are_shown_late_are_asked_all_the_same() -> None:
    """/metrics that begins to answer while the gate runs adds the step."""
    machine = Machine()
    machine.see(OK, listing=LISTED, metrics=Failure(FailureKind.MALFORMED))
    assert Step.EVERY_ENGINE not in machine.memory.gate.steps
    last = machine.pass_gate(engines(4))[-1]
    assert last.step is Step.EVERY_ENGINE and last.requests == 4


def test_beside_a_saturated_server_the_gate_has_time() -> None:
    """Behind others' work each step may take as long as the first one."""
    machine = Machine()
    machine.see(OK, listing=LISTED, metrics=metrics(sample(running=9, waiting=9)))
    for _ in range(3):
        want = machine.wanted()
        assert want is not None and want.timeout_s == HEALTH.warmup_timeout_s
        made = machine.generation(step=want.step)
        machine.see(OK, metrics=metrics(sample(machine.now, 9, 9)), generation=made)


def test_a_new_engine_after_a_new_engine_waits_ever_longer() -> None:
    """Two servers behind one address are another engine at every look: few generations, no storm;
    READY begins the count anew."""
    machine = ready()
    wanted = 0
    for look in range(1800):
        machine.see(OK, metrics=metrics(start=float(100 * (look % 2))), after=1)
        wanted += machine.wanted() is not None
        assert machine.memory.state is State.SMOKE
    assert wanted < 5
    assert machine.memory.gate.not_before == machine.now + 60
    machine.now += 60
    machine.pass_gate(metrics(start=100.0))
    assert machine.memory.state is State.READY
    assert machine.memory.renewals == 0


# --- silence --------------------------------------------------------------------------------------


def silences(machine: Machine, count: int, **shown: float) -> list[State]:
    """Canaries that time out one after the other, beside a server that looks so."""
    states = []
    for _ in range(count):
        out = machine.outstanding(machine.now)
        machine.see(OK, metrics=metrics(sample(machine.now, **shown)), outstanding=out)
        made = machine.generation(SILENT, lasting=9)
        states.append(
            machine.see(OK, metrics=metrics(sample(machine.now, **shown)), generation=made)
        )
    return states


@pytest.mark.parametrize("running", [0.0, 2.0])
def test_answers_that_never_come_where_nothing_waits(running: float) -> None:
    """Steps are made, of others' work or of the canaries themselves: the third silence is enough,
    and each is asked for at once."""
    machine = ready()
    assert silences(machine, 2, running=running) == [State.READY] * 2
    assert machine.wanted() is not None
    assert silences(machine, 1, running=running) == [State.NOT_READY]
    assert [str(n) for n in machine.memory.notes] == ["generation.unanswered (3 in a row)"]
    machine.see(OK, metrics=metrics(sample(9e9)), generation=machine.generation(step=Step.RECOVERY))
    assert machine.see(OK, metrics=metrics(sample(9e9))) is State.READY


def test_silence_behind_work_that_waits_is_no_verdict() -> None:
    """However often: the canary waited as well. That nothing is read any more is said in the end."""
    machine = ready()
    assert set(silences(machine, 10, running=4.0, waiting=9.0)) <= {State.READY, State.DEGRADED}
    assert machine.memory.record(ANY).unanswered == 0


def test_a_queue_that_giving_up_emptied_tells_nothing() -> None:
    """Behind a lone prefill our own request is what waits: gone with its time-out, it was there."""
    machine = ready()
    for _ in range(6):
        began = machine.now
        for _ in range(6):
            seen = sample(cache=machine.now / 1e6, running=1, waiting=1)
            machine.see(OK, metrics=metrics(seen), outstanding=machine.outstanding(began))
        made = replace(machine.generation(SILENT), started_at=began)
        machine.see(
            OK,
            metrics=metrics(replace(seen, waiting=0.0, cache_usage=machine.now)),
            generation=made,
        )
    assert machine.memory.record(ANY).unanswered == 0


def test_an_answer_that_fails_waits_behind_nothing() -> None:
    """Cut off or unreadable, beside work that waits or is hidden: three are enough all the same."""
    cut_off = (Finding("answer", Outcome.UNKNOWN, "generation.failed"),)
    for shown in (metrics(sample(9, 64, 9)), TIMEOUT):
        machine = ready()
        machine.see(OK, metrics=metrics(sample(9, 64, 9)))
        for _ in range(3):
            state = machine.see(OK, metrics=shown, generation=machine.generation(cut_off))
        assert (state, machine.codes) == (State.NOT_READY, ["generation.failed"])


# --- texts that are no answer ---------------------------------------------------------------------


def text(machine: Machine, tokens: tuple[int, ...], chance: float | None = -40.0) -> Generation:
    logprobs = None if chance is None else (chance / len(tokens),) * len(tokens)
    made = machine.generation(tokens=tokens)
    return replace(made, completion=Completion("text", tokens, logprobs))


@pytest.mark.parametrize("chance", [-40.0, None])
def test_a_text_that_was_there_before_is_no_answer(chance: float | None) -> None:
    """A proxy that replays one cached completion is out by the third replay."""
    machine = ready()
    states = [
        machine.see(OK, metrics=metrics(), generation=text(machine, (7, 8, 9), chance))
        for _ in range(4)
    ]
    assert states == [State.READY, State.DEGRADED, State.DEGRADED, State.NOT_READY]
    assert machine.codes == ["text.replayed"]


def test_replays_of_several_texts_in_turn_are_seen() -> None:
    """The last 256 texts are known, and no more, for the sake of memory."""
    machine = ready()
    for n in range(TEXTS_KEPT + 20):
        made = text(machine, (n, 8, 9))
        assert machine.see(OK, metrics=metrics(), generation=made) is State.READY
    assert len(machine.memory.texts) == TEXTS_KEPT
    assert machine.see(OK, metrics=metrics(), generation=text(machine, (5, 8, 9))) is State.READY
    again = text(machine, (25, 8, 9))
    assert machine.see(OK, metrics=metrics(), generation=again) is State.DEGRADED


class Uncounted(Machine):
    """A machine whose /metrics counts no token of our answers."""

    def counting(self, seen: Exposition) -> Exposition:
        return seen


def uncounted() -> Machine:
    counted = ready()
    return Uncounted(counted.policy, counted.now, counted.memory)


def frozen() -> EngineSample:
    return sample(tokens=9e9)


def test_answers_that_metrics_do_not_count_are_said() -> None:
    """The first scrape may be early; ten seconds later /metrics is cached, or of another process.
    It is no reason to send work elsewhere, and over when tokens are counted."""
    machine = uncounted()
    machine.see(OK, metrics=metrics(frozen()))
    machine.see(OK, metrics=metrics(frozen()), generation=machine.generation())
    states = [machine.see(OK, metrics=metrics(frozen())) for _ in range(3)]
    assert states == [State.READY, State.READY, State.DEGRADED]
    assert machine.codes == ["metrics.uncounted"]
    assert machine.see(OK, metrics=metrics(sample(tokens=9e9 + 8))) is State.READY


def test_an_answer_that_is_not_counted_is_no_recovery() -> None:
    """Who answers is not who is looked at, so READY waits for tokens that are counted."""
    machine = uncounted()
    machine.see(OK, metrics=metrics(frozen()))
    for _ in range(4):
        machine.see(DEAD, after=1)
    for _ in range(10):
        made = machine.generation(step=Step.RECOVERY)
        state = machine.see(OK, metrics=metrics(frozen()), generation=made)
        assert state is State.NOT_READY
    assert machine.see(OK, metrics=metrics(sample(tokens=9e9 + 8))) is State.READY


# --- clocks ---------------------------------------------------------------------------------------


def test_work_without_a_step_is_asked_before_it_is_called_stuck() -> None:
    """At half the readiness budget a canary: answered, only /metrics is frozen, and the clock
    begins anew; unanswered, it is NOT_READY at the budget as ever."""
    answering, silent = uncounted(), uncounted()
    stuck = metrics(sample(9e9, running=1))
    for machine in (answering, silent):
        machine.see(OK, metrics=stuck)
        began = machine.now
        while machine.wanted() is None:
            machine.see(OK, metrics=stuck)
        assert machine.now - began == HEALTH.readiness_budget_s / 2
    for _ in range(100):
        made = answering.generation() if answering.wanted() else None
        answering.see(OK, metrics=stuck, generation=made)
        assert answering.memory.state in (State.READY, State.DEGRADED)
        assert answering.memory.stuck_for(answering.now) <= HEALTH.readiness_budget_s / 2
    assert answering.codes == ["metrics.uncounted"]
    running = silent.outstanding(silent.now)
    while silent.memory.state is not State.NOT_READY:
        silent.see(OK, metrics=stuck, outstanding=running)
    assert silent.now - began == HEALTH.readiness_budget_s


def test_an_error_is_no_sign_of_a_step() -> None:
    """The API process refuses without its engine: only a text resets the clock."""
    machine = ready()
    stuck = metrics(sample(9e9, running=1))
    machine.see(OK, metrics=stuck)
    began = machine.now
    while machine.memory.state is not State.NOT_READY:
        machine.see(OK, metrics=stuck, generation=machine.generation(DENIED))
    assert machine.now - began == HEALTH.readiness_budget_s


def saturated(machine: Machine, seconds: float, found: tuple[Finding, ...] | None) -> int:
    """Time passes in which requests wait; canaries find this, or time out. How many were asked."""
    asked, until = 0, machine.now + seconds
    running: Outstanding | None = None
    while machine.now < until:
        made, want = None, machine.wanted()
        shown = metrics(sample(machine.now * 10, 64, 9))
        if running is not None and machine.now - running.started_at >= 180:
            made = replace(machine.generation(SILENT), started_at=running.started_at)
            running = None
        elif want is not None and found is None:
            running = machine.outstanding(machine.now)
        elif want is not None:
            made = machine.generation(found)
        asked += want is not None
        machine.see(OK, metrics=shown, generation=made, outstanding=running)
    return asked


def test_a_saturated_server_is_read_all_the_same() -> None:
    """After four times evidence_max_age_s one canary joins the queue; what is bad is then found."""
    machine = ready()
    age = UNREAD_TIMES * HEALTH.evidence_max_age_s
    assert saturated(machine, age - 10, GOOD) == 0
    assert saturated(machine, 30, GOOD) == 1
    assert saturated(machine, age - 40, GOOD) == 0
    saturated(machine, 100, GARBAGE)
    assert machine.memory.state is State.NOT_READY


def test_what_cannot_be_read_under_saturation_is_said_and_no_more() -> None:
    """A time-out there is no verdict: DEGRADED with the age of the last text, asked rarely."""
    machine = ready()
    assert saturated(machine, 6 * 3600, None) <= 16
    assert machine.memory.state is State.DEGRADED
    assert "text.unread" in machine.codes and "generation.unanswered" not in machine.codes


@pytest.mark.parametrize("lasts", [60.0, 900.0, 7200.0])
def test_a_pause_of_our_own_is_no_evidence(lasts: float) -> None:
    """Frozen with a canary out: its time-out tells nothing, and the next one has all its time."""
    machine = ready()
    asked = machine.outstanding(machine.now)
    machine.see(OK, metrics=metrics(sample(9)), outstanding=asked)
    gone = replace(machine.generation(SILENT), started_at=asked.started_at)
    before = machine.memory.generations
    assert machine.see(OK, metrics=metrics(sample(9)), generation=gone, after=lasts) is State.READY
    assert machine.memory.generations == before + 1  # no prompt is asked twice
    assert not machine.memory.record(ANY).doubted
    again = machine.outstanding(machine.now)
    for _ in range(5):
        state = machine.see(OK, metrics=metrics(sample(9)), outstanding=again)
        assert state is State.READY
        assert machine.memory.stuck_for(machine.now) == machine.now - again.started_at


def test_a_pause_late_in_a_canary_ends_its_clock_too() -> None:
    """The time-out that comes a turn after the pause began before it."""
    machine = ready()
    asked = machine.outstanding(machine.now)
    machine.see(OK, metrics=metrics(sample(9)), outstanding=asked)
    machine.see(OK, metrics=metrics(sample(9)), outstanding=asked, after=900)
    assert machine.memory.stuck_for(machine.now) == 0
    gone = replace(machine.generation(SILENT), started_at=asked.started_at)
    machine.see(OK, metrics=metrics(sample(9)), generation=gone)
    assert (machine.memory.state, machine.memory.record(ANY).unanswered) == (State.READY, 0)


@pytest.mark.parametrize("work", [0.0, 3.0])
def test_turns_at_their_ordinary_pace_are_no_pause(work: float) -> None:
    """Three questions that all time out make a turn of 20 s, in which clocks run."""
    machine = ready()
    machine.see(OK, metrics=metrics(sample(9, work)))
    woke = machine.memory.woke_at
    machine.see(OK, metrics=metrics(sample(9, work)), after=20)
    assert machine.memory.woke_at == woke
    machine.see(OK, metrics=metrics(sample(9, work)), generation=machine.generation(SILENT))
    assert machine.memory.stuck_for(machine.now) > 0
    machine.see(OK, metrics=metrics(sample(9, work)), after=26)
    assert machine.memory.woke_at == machine.now
    assert machine.memory.stuck_for(machine.now) == 0
    assert machine.memory.engines["0"].unmoved <= 1
