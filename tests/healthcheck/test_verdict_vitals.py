"""The verdict with vital signs: scripted ones, in the order in which a loop would see them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from healthcheck.client.answers import Answer, Failure, FailureKind
from healthcheck.client.exposition import Exposition
from healthcheck.judge import Step
from healthcheck.signs.model import Card, Compiler, Ended, Process, Signs
from healthcheck.verdict import State, vitals
from healthcheck.verdict.vitals import LATELY_S, SEEN_S
from healthcheck.verdict.want import SUSPECT_S
from tests.bench.traffic import LONGEST_COMPILER_S
from tests.support.made_signs import card, signs
from tests.support.verdict_machine import REFUSED, Machine, metrics, ready, sample

WORKS = metrics(sample(running=2))
RANKS = ("APIServer", "EngineCore", "Worker_TP0", "Worker_TP1")
Seeing = Callable[[float], Signs]


def asks(machine: Machine, seeing: Seeing, shown: Exposition, seconds: float) -> float:
    """A second at a time: work, no step, and a question of ours that is out since now. Returns the
    seconds until it was not ready, `seconds` if it stayed so."""
    began = machine.now
    while machine.now - began < seconds:
        signs = seeing(machine.now + 1)
        asked = machine.outstanding(began)
        if machine.see(after=1, metrics=shown, outstanding=asked, signs=signs) is not State.READY:
            break
    return machine.now - began


# --- who is stopped, who is gone -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["APIServer", "EngineCore", "Worker"])
def test_a_stopped_process_is_not_ready_at_its_second_look(name: str) -> None:
    """Seen at one look it may be a debugger's; a look more settles it, and is asked for at once."""
    machine = ready()
    at = machine.now + 5
    assert machine.see(metrics=metrics(), signs=signs(at, states={name: ("T", at)})) is State.READY
    assert machine.pause == 1
    seen = signs(at + 2, states={name: ("T", at)})
    assert machine.see(after=2, metrics=metrics(), signs=seen) is State.NOT_READY
    assert machine.codes == ["process.stopped"]
    assert re.fullmatch(rf"{name}, pid \d, 2 s", machine.memory.notes[0].detail)


def test_a_process_that_goes_on_is_ready_again_by_a_generation() -> None:
    """SIGCONT: it stays out while it is stopped, whatever else is well, and no longer."""
    machine = ready()
    for _ in range(4):
        at = machine.now + 5
        stop = signs(at, states={"EngineCore": ("T", 1.0)})
        made = machine.generation()
        assert machine.see(metrics=metrics(), generation=made, signs=stop) is State.NOT_READY
    for _ in range(3):
        made = machine.generation(step=Step.RECOVERY)
        machine.see(metrics=metrics(), generation=made, signs=signs(machine.now + 5))
    assert machine.memory.state is State.READY


def test_a_process_of_no_concern_may_be_traced() -> None:
    """t is a debugger's look, D a disk's: neither is a stop."""
    machine = ready()
    for letter in "tDI":
        seen = signs(machine.now + 5, states={"EngineCore": (letter, 1.0)})
        assert machine.see(metrics=metrics(), signs=seen) is State.READY


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (Ended("Worker_TP1", 9, 0.0, None, "SIGKILL"), "Worker_TP1, pid 9: SIGKILL"),
        (Ended("Worker", 9, 0.0, None, "SIGKILL", by_oom=True), "by the kernel, out of memory"),
        (Ended("EngineCore", 9, 0.0, 1), "exit code 1"),
        (Ended("APIServer", 9, 0.0), "in an unknown way"),
    ],
)
def test_a_process_that_died_is_not_ready_at_once_and_named(end: Ended, words: str) -> None:
    """With the signal, the code or the kernel's want of memory, while /health still says 200."""
    machine = ready()
    at = machine.now + 5
    died = signs(at, ended=(replace(end, at=at - 1),))
    assert machine.see(metrics=metrics(), signs=died) is State.NOT_READY
    assert machine.codes == ["process.died"]
    assert words in machine.memory.notes[0].detail


def test_an_end_with_code_0_or_before_the_last_proof_says_nothing() -> None:
    """What scales down leaves of its own will; what ended before an answer was not needed for it."""
    machine = ready()
    at = machine.now + 5
    left = Ended("EngineCore_DP3", 9, at - 1, 0)
    before = Ended("Worker", 8, machine.memory.good_generation_at or 0.0, None, "SIGKILL")
    seen = signs(at, ended=(left, before))
    assert machine.see(metrics=metrics(), signs=seen) is State.READY


def test_the_end_is_told_beside_a_dead_server_and_while_it_loads_again() -> None:
    """DEAD names it, though who wrote the signs is gone by then, and so does LOADING for two
    minutes; then it is history."""
    machine = ready()
    end = Ended("Worker", 9, machine.now + 1, None, "SIGKILL")
    last = signs(machine.now + 5, ended=(end,))
    while machine.memory.state is not State.DEAD:
        machine.see(REFUSED, signs=last)
    assert machine.codes == ["server.refused", "process.died"]
    loading = Machine(now=end.at + LATELY_S - 6)
    for codes in (["start.waiting", "process.died"], ["start.waiting"]):
        loading.see(REFUSED, signs=signs(loading.now + 5, ended=(end,)))
        assert loading.codes == codes


def test_dead_tells_the_ends_of_its_own_start_alone() -> None:
    """A server that was killed half a minute before, and its successor, which was killed now: the
    reason is of the second, also when the third is started before the port was gone for long."""
    machine = ready()
    born = machine.now
    before = Ended("EngineCore", 66, born - 1, None, "SIGKILL")
    machine.see(metrics=metrics(), signs=signs(machine.now + 5, started=born - 1))
    machine.see(metrics=metrics(), signs=signs(machine.now + 5, started=born, ended=(before,)))
    assert machine.memory.born_at == born
    end = Ended("EngineCore", 30, machine.now + 1, None, "SIGKILL")
    again = machine.now + 12
    while machine.memory.state is not State.DEAD:
        at = machine.now + 5
        started = again if at > again else born
        machine.see(REFUSED, signs=signs(at, started=started, ended=(before, end)))
        assert "pid 66" not in str(machine.memory.notes)
    assert machine.codes == ["server.refused", "process.died"]
    assert "pid 30" in machine.memory.notes[1].detail


def test_a_start_is_not_charged_with_the_ends_of_the_one_before() -> None:
    """A service that finds a server loading names who died in this start, and nobody else."""
    loading = Machine(now=1000.0)
    before = Ended("EngineCore", 66, 999.0, None, "SIGKILL")
    loading.see(REFUSED, signs=signs(1005.0, started=1000.0, ended=(before,)))
    assert loading.codes == ["start.waiting"]
    own = Ended("EngineCore", 70, 1004.0, 1)
    loading.see(REFUSED, signs=signs(1010.0, started=1000.0, ended=(before, own)))
    assert str(loading.memory.notes[1]) == "process.died (EngineCore, pid 70: exit code 1)"


# --- who sleeps beside work ----------------------------------------------------------------------------


def test_a_deadlock_is_told_within_seconds_of_a_question() -> None:
    """Work, no step, all asleep: the question that settles it is asked after four seconds, and two
    readings later it is NOT_READY with the processes' names."""
    machine = ready()
    machine.see(metrics=WORKS, signs=signs(machine.now + 5))
    began = asleep = machine.now
    while machine.wanted() is None:
        assert machine.see(after=1, metrics=WORKS, signs=signs(machine.now + 1, still=asleep)) is (
            State.READY
        )
        assert machine.pause == 1
    assert SUSPECT_S <= machine.now - began <= SUSPECT_S + 2
    asks(machine, lambda at: signs(at, still=asleep), WORKS, 60)
    assert machine.now - began <= SUSPECT_S + 5
    assert machine.codes == ["progress.deadlock"]
    asleep_s = machine.now - began
    assert machine.memory.notes[0].detail == f"asleep for {asleep_s:.0f} s: EngineCore, Worker"


def test_an_idle_engine_that_owes_an_answer_is_as_soon_told() -> None:
    """A canary that no process wakes for: two seconds and two readings."""
    machine = ready()
    asleep = machine.now - 60
    assert asks(machine, lambda at: signs(at, still=asleep), metrics(), 60) <= 3
    assert machine.codes == ["progress.deadlock"]


def test_an_engine_that_hangs_over_the_question_is_told_a_little_later() -> None:
    """It woke for it, and has slept ever since without a step: six seconds."""
    machine = ready()
    asleep = machine.now + 3
    told = asks(machine, lambda at: signs(at, still=asleep if at > asleep else None), metrics(), 60)
    assert 9 <= told <= 10
    assert machine.codes == ["progress.deadlock"]


def busy_cards(at: float) -> Signs:
    return signs(at, still=1.0, cards=(card(100, at),))


NO_DEADLOCK = {
    "compiling: hipcc, ": lambda at: signs(at, still=1.0, compilers=(Compiler("hipcc", 9.0, 8.0),)),
    "at work: Worker": lambda at: signs(at, still={"EngineCore": 1.0}),
    "waiting for a disk: Worker": lambda at: signs(
        at, still={"EngineCore": 1.0}, states={"Worker": ("D", 1.0)}
    ),
    "asleep, cards at work: 0000:c1:00.0": busy_cards,
    "asleep": lambda at: signs(at, still=1.0, cards=None),
}  # fmt: skip


@pytest.mark.parametrize("words", NO_DEADLOCK)
def test_patience_is_as_without_signs_where_anything_may_be_at_work(words: str) -> None:
    """A compiler, CPU, a disk, a card, or a card that cannot be read: 60 s, and the reason says
    which."""
    machine = ready()
    asleep: Seeing = NO_DEADLOCK[words]
    assert 60 <= asks(machine, asleep, WORKS, 90) <= 63
    assert machine.codes == ["progress.none"]
    assert f", {words}" in machine.memory.notes[0].detail


@pytest.mark.parametrize(
    "seen",
    [
        lambda at: signs(at, still=1.0, cards=(card(None),)),
        lambda at: signs(at, still=1.0, cards=(card(0, None),)),
        lambda at: signs(at, still=1.0, names=("APIServer", "Worker")),
        lambda at: signs(at, still=1.0, names=("APIServer",)),
        lambda at: _others_work(signs(at, still=1.0)),
        lambda at: signs(at - SEEN_S - 1, still=1.0),
        lambda at: signs(at + 3600, still=1.0),
        lambda at: None,
    ],
)
def test_what_is_not_known_makes_no_deadlock(seen: Seeing) -> None:
    """A card without its load or that never showed any, an engine core that is not seen, a compile in a process without a
    title, signs that are old, from the future or missing: the budget decides."""
    machine = ready()
    assert 60 <= asks(machine, seen, WORKS, 90) <= 63
    assert machine.codes == ["progress.none"]


def _others_work(seen: Signs) -> Signs:
    rest: Process = seen.processes[-1]
    return replace(seen, processes=(*seen.processes[:-1], replace(rest, still_since=None)))


def test_a_scheduler_that_was_not_read_just_now_makes_no_deadlock() -> None:
    """/metrics fails: whether the engine steps is not known."""
    machine = ready()
    began = machine.now
    for _ in range(20):
        asked, seen = machine.outstanding(began), signs(machine.now + 1, still=1.0)
        assert machine.see(after=1, outstanding=asked, signs=seen) is State.READY


def test_an_api_process_that_is_late_makes_no_deadlock() -> None:
    """It answers /health after two seconds: our question may not have reached the engine."""
    machine = ready()
    began = machine.now
    for _ in range(20):
        asked, seen = machine.outstanding(began), signs(machine.now + 1, still=1.0)
        late = Answer(200, elapsed_s=2.0)
        state = machine.see(late, after=1, metrics=WORKS, outstanding=asked, signs=seen)
        assert state is State.READY


def test_one_reading_makes_no_deadlock() -> None:
    """After five seconds of a question the first look waits for the second, a second later."""
    machine = ready()
    asked = machine.outstanding(machine.now)
    for after, state in ((5.0, State.READY), (1.0, State.NOT_READY)):
        seen = signs(machine.now + after, still=1.0)
        assert machine.see(after=after, metrics=metrics(), outstanding=asked, signs=seen) is state


def sees_asleep(machine: Machine, until: float) -> None:
    """A second at a time: a question of ours is out since now, and everybody sleeps."""
    machine.see(metrics=WORKS, signs=signs(machine.now + 5))
    asked, asleep = machine.outstanding(machine.now), machine.now - 60
    while machine.now < until and machine.memory.state is not State.STALLED:
        seen = signs(machine.now + 1, still=asleep)
        machine.see(after=1, metrics=WORKS, outstanding=asked, signs=seen)


def test_a_deadlock_is_stalled_after_its_own_budget() -> None:
    """Nobody works, so no slow step is waited for: stalled by deadlock_budget_s and three readings,
    long before stall_budget_s, and not before."""
    machine = ready()
    began, health = machine.now, machine.policy.health
    sees_asleep(machine, began + health.stall_budget_s)
    assert machine.memory.state is State.STALLED
    assert machine.now - began == 5 + health.deadlock_budget_s + 2
    assert machine.codes == ["progress.stalled"]
    assert machine.memory.notes[0].detail == "302 s, asleep"


def test_the_longest_compiler_of_another_container_is_no_stall() -> None:
    """All wait for its lock for 250 s: not ready, not restarted, ready again once they move."""
    machine = ready()
    sees_asleep(machine, machine.now + LONGEST_COMPILER_S)
    assert machine.memory.state is State.NOT_READY
    assert State.STALLED not in {t.state for t in machine.memory.timeline}
    for tokens in range(1, 5):
        made, seen = machine.generation(step=Step.RECOVERY), signs(machine.now + 5)
        machine.see(metrics=metrics(sample(tokens=9 * tokens)), generation=made, signs=seen)
    assert machine.memory.state is State.READY


def test_a_gate_that_sleeps_keeps_the_whole_stall_budget() -> None:
    """Two servers that start together build kernels one after the other."""
    machine = Machine()
    machine.to_smoke()
    began = machine.now
    sees_asleep(machine, began + machine.policy.health.stall_budget_s)
    assert machine.memory.state is State.SMOKE
    sees_asleep(machine, machine.now + 10)
    assert machine.memory.state is State.STALLED


TWO = ("APIServer", "EngineCore_DP0", "Worker_DP0_TP0", "Worker_DP0_TP1")
TWO += ("EngineCore_DP1", "Worker_DP1_TP0", "Worker_DP1_TP1")


def asks_the_second(machine: Machine, seeing: Seeing, seconds: float) -> float:
    """The first of two engines makes a step a second, the second has work and makes none; a question
    to it is out since now. Returns the seconds until it was not ready."""
    machine.see(metrics=metrics(sample(running=2), sample(engine="1", running=2)))
    began = machine.now
    asked = replace(machine.outstanding(began), engine="1")
    while machine.now - began < seconds and machine.memory.state is State.READY:
        tokens = 10 * (machine.now - began) + 10
        shown = metrics(sample(running=2, tokens=tokens), sample(engine="1", running=2))
        machine.see(after=1, metrics=shown, outstanding=asked, signs=seeing(machine.now + 1))
    return machine.now - began


def second_sleeps(at: float, cards: tuple[Card, ...] = ()) -> Signs:
    """The second engine's processes sleep, the first one's work."""
    still = {name: 1.0 for name in TWO if "DP1" in name}
    return signs(at, still=still, names=TWO, cards=cards)


def test_a_deadlocked_engine_among_working_ones_is_found() -> None:
    """Data parallel, scripted: within seconds, with its own processes' names and no other's."""
    machine = ready()
    assert asks_the_second(machine, second_sleeps, 90) <= 4
    (note,) = machine.memory.notes
    assert note.code == "progress.deadlock"
    assert note.detail.endswith("s: EngineCore_DP1, Worker_DP1_TP0, Worker_DP1_TP1")


def test_whose_card_works_is_not_known_of_several_engines() -> None:
    """The others' cards work, and one may be its own: the budget decides, and what is told is of the
    engine that makes no step."""
    machine = ready()
    busy: Seeing = lambda at: second_sleeps(at, (card(100, at), card(0, 1.0)))  # noqa: E731
    assert 60 <= asks_the_second(machine, busy, 90) <= 63
    (note,) = machine.memory.notes
    assert (note.code, note.detail.partition(", ")[2]) == (
        "progress.none",
        "engine 1, asleep, cards at work: 0000:c1:00.0",
    )


def test_ranks_are_compared_within_their_engine() -> None:
    """The ranks of an idle engine sleep: that is no mismatch of the one that works without a step."""
    machine = ready()
    still = {"EngineCore_DP0": 1.0, "Worker_DP0_TP1": 1.0}
    works: Seeing = lambda at: signs(at, still=still, names=TWO)  # noqa: E731
    asks_the_second(machine, works, 90)
    assert machine.codes == ["progress.none"]
    mixed: Seeing = lambda at: signs(at, still={"Worker_DP1_TP1": 1.0}, names=TWO)  # noqa: E731
    machine = ready()
    asks_the_second(machine, mixed, 90)
    assert machine.codes == ["progress.none", "progress.rank_asleep"]
    assert machine.memory.notes[1].detail == "Worker_DP1_TP1; at work: Worker_DP1_TP0"


def test_a_rank_asleep_among_working_ones_is_named() -> None:
    """Tensor parallel, scripted: at the budget, beside what is said without signs."""
    machine = ready()
    still = {"EngineCore": 1.0, "Worker_TP1": 1.0}
    asks(machine, lambda at: signs(at, still=still, names=RANKS), WORKS, 90)
    assert machine.codes == ["progress.none", "progress.rank_asleep"]
    assert machine.memory.notes[1].detail == "Worker_TP1; at work: Worker_TP0"


def test_a_rank_that_waits_for_a_disk_does_not_work() -> None:
    """Beside it others may sleep: that is said of the disk, not of the ranks."""
    machine = ready()
    still, disk = {"EngineCore": 1.0, "Worker_TP1": 1.0}, {"Worker_TP0": ("D", 1.0)}
    asks(machine, lambda at: signs(at, still=still, names=RANKS, states=disk), WORKS, 90)
    assert machine.codes == ["progress.none"]


def test_a_stop_in_the_gate_is_named() -> None:
    """It is not ready anyway, and the reason says who is stopped."""
    machine = Machine()
    machine.to_smoke()
    stop = signs(machine.now + 5, states={"Worker": ("T", 1.0)})
    assert machine.see(metrics=metrics(), signs=stop) is State.SMOKE
    assert machine.codes == ["process.stopped"]


# --- cards ---------------------------------------------------------------------------------------------


def test_an_uncorrected_error_is_degraded_with_the_card() -> None:
    """It serves, and what it writes may be wrong."""
    machine = ready()
    seen = signs(machine.now + 5, cards=(card(uncorrected=2),))
    assert machine.see(metrics=metrics(), signs=seen) is State.DEGRADED
    assert str(machine.memory.notes[0]) == "gpu.uncorrected (0000:c1:00.0: 2)"


def test_an_uncorrected_error_takes_out_of_rotation_by_choice() -> None:
    """gpu_error_effect = "not-ready"."""
    machine = ready(gpu_error_effect="not-ready")
    seen = signs(machine.now + 5, cards=(card(uncorrected=2),))
    assert machine.see(metrics=metrics(), signs=seen) is State.NOT_READY
    assert machine.codes == ["gpu.uncorrected"]


# --- canaries by need ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seeing", "least", "most", "tokens"),
    [
        (lambda at: None, 36, 60, 8),
        (lambda at: signs(at, still=1.0), 72, 114, 24),
        (lambda at: signs(at, names=("APIServer",)), 36, 60, 8),
    ],
)
def test_an_engine_that_lives_is_asked_more_rarely_and_for_more(
    seeing: Seeing, least: float, most: float, tokens: int
) -> None:
    """With signs an idle engine's canary is for its text; without them, for its life."""
    machine = ready(idle_check_after_s=7000.0)
    began = machine.now
    while (want := machine.wanted()) is None:
        machine.see(after=1, metrics=metrics(), signs=seeing(machine.now + 1))
    assert least <= machine.now - began <= most
    assert (want.step, want.tokens) == (Step.CANARY, tokens)


@pytest.mark.parametrize(("seeing", "age"), [(lambda at: None, 300), (lambda at: signs(at), 90)])
def test_a_busy_engine_that_lives_is_read_more_often(seeing: Seeing, age: float) -> None:
    """Its tokens flow and nothing waits: a text at twice canary_after_s, for a sampler may have
    turned greedy."""
    machine = ready()
    began, tokens = machine.now, 0
    while machine.wanted() is None:
        tokens += 50
        shown = metrics(sample(tokens=tokens, running=3))
        machine.see(metrics=shown, signs=seeing(machine.now + 5))
    assert age <= machine.now - began <= age + 10


@pytest.mark.parametrize("seeing", [lambda at: None, lambda at: signs(at)])
def test_that_an_engine_lives_is_no_step_of_it(seeing: Seeing) -> None:
    """While /metrics fails a canary has to prove progress, as soon with signs as without: within
    the readiness budget."""
    machine = ready(idle_check_after_s=7000.0)
    shown = metrics(sample(tokens=50, running=3))
    machine.see(metrics=shown, signs=seeing(machine.now + 5))
    began, failed = machine.now, Failure(FailureKind.MALFORMED, "/metrics answered 500")
    while machine.wanted() is None:
        machine.see(after=1, metrics=failed, signs=seeing(machine.now + 1))
    assert machine.now - began < 60


def test_counters_of_a_cache_make_no_suspicion_twice() -> None:
    """The engine answers and /metrics, from a cache, shows work and no step: asked once, then at
    the pace of half a budget."""
    machine = ready()
    machine.see(metrics=WORKS, signs=signs(machine.now + 5, still=1.0))
    asked, shown = [], machine.answered
    for _ in range(120):
        made = machine.generation(lasting=1) if machine.wanted() else None
        asked += [machine.now] if made else []
        seen = signs(machine.now + 1, still=1.0)
        machine.answered = shown - (made is not None)  # what is shown does not count it
        state = machine.see(after=1, metrics=WORKS, generation=made, signs=seen)
        assert state in (State.READY, State.DEGRADED)
    assert 2 <= len(asked) <= 6


def test_an_engine_lives_by_its_own_processes() -> None:
    """Of two engines the one whose worker is stopped is not alive, and the other is."""
    memory = replace(ready().memory, signs=signs(9.0, names=TWO, states={TWO[-1]: ("T", 1.0)}))
    assert [vitals.alive(memory, engine) for engine in ("0", "1")] == [True, False]


def test_who_is_stopped_is_not_told_as_at_work() -> None:
    """Of an engine that is stopped beside a worker that runs, the stop is what is told."""
    seen = signs(9.0, still={"Worker": None}, states={"EngineCore": ("T", 1.0)})
    assert vitals.doing(replace(ready().memory, signs=seen)) == ", stopped: EngineCore"


def test_of_many_processes_eight_are_named_and_the_rest_counted() -> None:
    """And of compilers, for how long the first of them has been at work."""
    memory = ready().memory
    for count, told in ((8, ""), (11, " and 3 more")):
        names = tuple(f"Worker_TP{rank}" for rank in range(count))
        seen = replace(memory, signs=signs(9.0, names=names))
        assert vitals.doing(seen) == f", at work: {', '.join(names[:8])}{told}"
    compilers = (Compiler("hipcc", 7.0, 1.0), Compiler("clang", 4.0, 1.0))
    seen = replace(memory, signs=signs(9.0, compilers=compilers))
    assert vitals.doing(seen) == ", compiling: hipcc, clang, 5 s"
