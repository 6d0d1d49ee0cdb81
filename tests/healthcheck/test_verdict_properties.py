"""Properties of the state machine under any sequence of readings."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from deploy.recipe import Health
from healthcheck.client.answers import Answer, Failure, FailureKind
from healthcheck.client.exposition import EngineSample, Exposition, Speculation
from healthcheck.client.listing import Listing
from healthcheck.judge import Completion, Finding, Outcome, Step
from healthcheck.reasons import Note
from healthcheck.verdict import (
    ANY,
    SURFACES,
    UNREAD_TIMES,
    Generation,
    Memory,
    Outstanding,
    Policy,
    Reading,
    State,
    advance,
    begin,
    next_look_s,
    verdict,
    wants,
)

POLICY = Policy(Health(), "m")
STARTS = st.sampled_from([0, 1, 2])
SERVING = {State.READY, State.DEGRADED}

HEALTHS = st.one_of(
    st.sampled_from([200, 200, 200, 503, 500, 302]).map(Answer),
    st.sampled_from(list(FailureKind)).map(Failure),
)
LISTINGS = st.sampled_from(
    [None, Listing(("m",), 1024), Listing(("other",)), Note("config.unauthorized")]
)
OUTCOMES = st.sampled_from(
    [
        (Finding("real tokens", Outcome.GOOD),),
        (Finding("real tokens", Outcome.GOOD),),
        (Finding("logprobs", Outcome.BAD, "numerics.nan"),),
        (Finding("answer", Outcome.UNKNOWN, "generation.timeout"),),
        (Finding("answer", Outcome.UNKNOWN, "config.unauthorized"),),
    ]
)


@st.composite
def expositions(draw: st.DrawFn) -> Exposition | Failure | None:
    kind = draw(st.sampled_from(["none", "failure", "empty", "engines", "engines", "engines"]))
    if kind == "none":
        return None
    if kind == "failure":
        return Failure(FailureKind.MALFORMED)
    if kind == "empty":
        return Exposition(1.0, ())
    count = draw(st.integers(1, 2))
    engines = tuple(
        EngineSample(
            str(i),
            0.0,
            float(draw(st.integers(0, 3)) * 100),
            float(draw(st.integers(0, 1))),
            float(draw(st.integers(0, 1))),
            0.0,
            draw(
                st.sampled_from(
                    [None, Speculation(0, 0, 0, (0, 0)), Speculation(900, 0, 0, (0, 0))]
                )
            ),
        )
        for i in range(count)
    )
    return Exposition(draw(st.sampled_from([None, 1.0, 1.0, 2.0])), engines)


@st.composite
def scripts(draw: st.DrawFn) -> list[tuple[float, Answer | Failure, object, object, object, bool]]:
    """Steps: seconds, health, listing, metrics, the generation's findings, good start or not."""
    return draw(
        st.lists(
            st.tuples(
                st.sampled_from([0.0, 1.0, 5.0, 5.0, 30.0, 100.0, 4000.0]),
                HEALTHS,
                LISTINGS,
                expositions(),
                st.none() | OUTCOMES,
                st.booleans(),
            ),
            max_size=30,
        )
    )


def play(script: object, healthy_start: int) -> list[tuple[Memory, Reading, Memory]]:
    """Every step of a script: memory before, reading, memory after. Generations are answered
    only if they were wanted, as the loop does. `healthy_start`: of so many engines; 0 for none.

    The tokens of a script are what came since its last reading, unless it shows another start."""
    memory, now = begin(0.0, 1), 0.0
    steps: list[tuple[Memory, Reading, Memory]] = []
    running: Outstanding | None = None
    counter = 0
    written: Counter[str] = Counter()

    def grown(seen: object) -> object:
        if not isinstance(seen, Exposition) or seen.process_start == 2.0:
            return seen
        written.update({e.engine: int(e.generation_tokens) for e in seen.engines})
        engines = (replace(e, generation_tokens=written[e.engine]) for e in seen.engines)
        return replace(seen, engines=tuple(engines))

    def one(seconds, health, listing, metrics, findings) -> None:  # type: ignore[no-untyped-def]
        nonlocal memory, now, running, counter
        now += seconds
        made = None
        if running is not None and findings is not None:
            counter += 1
            completion = Completion("t", (counter, 5), (-9.0, -9.0))
            made = Generation(
                running.step,
                running.epoch,
                running.started_at,
                now,
                findings,
                completion,
                running.engine,
            )
            running = None
        reading = Reading(now, health, listing, grown(metrics), made, running)  # type: ignore[arg-type]
        after = advance(memory, reading, POLICY)
        steps.append((memory, reading, after))
        memory = after
        want = wants(memory, now, POLICY)
        if want is not None:
            assert running is None, "single flight"
            assert want.engine is None or want.engine in memory.engines
            running = Outstanding(want.step, want.epoch, now, want.engine)

    if healthy_start:
        good = (Finding("real tokens", Outcome.GOOD),)
        fresh = [EngineSample(str(n), generation_tokens=1.0) for n in range(healthy_start)]
        exposition = Exposition(1.0, tuple(fresh))
        while memory.state is not State.READY:
            one(5.0, Answer(200), Listing(("m",)), exposition, good)
    for seconds, health, listing, metrics, findings, _ in script:  # type: ignore[attr-defined]
        one(seconds, health, listing, metrics, findings)
    return steps


def passed(reading: Reading, memory: Memory) -> bool:
    made = reading.generation
    return made is not None and made.epoch == memory.epoch and made.outcome is Outcome.GOOD


@given(scripts(), STARTS)
def test_ready_is_unreachable_without_a_fresh_passed_generation(
    script: object, healthy_start: int
) -> None:
    """Between any unready state and READY a generation of the present engine has passed."""
    good_since_unready = False
    for before, reading, after in play(script, healthy_start):
        if before.state in SERVING and after.state not in SERVING:
            good_since_unready = False
        if before.state not in SERVING or after.state not in SERVING:
            good_since_unready = good_since_unready or passed(reading, after)
        if after.epoch != before.epoch:
            good_since_unready = False
        if before.state not in SERVING and after.state in SERVING:
            assert good_since_unready
            assert after.good_generation_at is not None


@given(scripts(), STARTS)
def test_dead_and_stalled_recover_through_smoke_only(script: object, healthy_start: int) -> None:
    """From STALLED the ways on are DEAD and SMOKE, from DEAD it is SMOKE; a gate lies between."""
    for before, _, after in play(script, healthy_start):
        if before.state in (State.DEAD, State.STALLED):
            assert after.state in (before.state, State.DEAD, State.SMOKE)
        if before.state is State.SMOKE and after.state in SERVING:
            assert after.gate.passed


@given(HEALTHS, LISTINGS, expositions(), st.none() | OUTCOMES, st.floats(0, 1e6))
def test_no_single_bad_sample_leaves_ready(
    health: Answer | Failure,
    listing: Listing | Note | None,
    metrics: Exposition | Failure | None,
    findings: tuple[Finding, ...] | None,
    seconds: float,
) -> None:
    """From READY one reading, however bad or late, never ends service; only another engine does.
    One bad text is a doubt, and said."""
    before = play([], 1)[-1][2]
    now = before.at + seconds
    made = None
    if findings is not None:
        made = Generation(Step.CANARY, before.epoch, before.at, now, findings)
    reading = Reading(now, health, listing, metrics, made, None)
    after = advance(before, reading, POLICY)
    bad = made is not None and made.outcome is Outcome.BAD
    expected = State.DEGRADED if bad else State.READY
    assert after.state is expected or [n.code for n in after.notes] == ["engine.new"]


@given(scripts(), STARTS)
def test_the_engine_probe_fails_in_dead_and_stalled_only(
    script: object, healthy_start: int
) -> None:
    """/livez/engine is 503 in DEAD and STALLED and nowhere else, so nothing else restarts it."""
    for _, _, after in play(script, healthy_start):
        live = verdict(after, after.at).surfaces.engine_live
        assert live is (after.state not in (State.DEAD, State.STALLED))


@given(scripts(), STARTS)
def test_no_server_counts_as_started_after_its_port_was_closed(
    script: object, healthy_start: int
) -> None:
    """Down and past its start is only a server that answered, or kept silent, at every look since
    it was up: the next one begins behind its startup probe."""
    closed = True
    for _, reading, after in play(script, healthy_start):
        gone = isinstance(reading.health, Failure) and reading.health.gone
        closed = gone or (closed and reading.transport is not Outcome.GOOD)
        down = after.state in (State.STALLED, State.DEAD)
        assert not (down and closed and verdict(after, after.at).surfaces.startup)


@given(scripts(), STARTS)
def test_every_memory_is_sound(script: object, healthy_start: int) -> None:
    """Ages are never negative, a next look is always due, and unready states give a reason."""
    for _, _, after in play(script, healthy_start):
        age = after.evidence_age_s(after.at)
        assert age is None or age >= 0
        assert after.stuck_for(after.at) >= 0
        assert 0 < next_look_s(after, POLICY) <= POLICY.health.scrape_interval_s
        assert after.notes or after.state is State.READY
        assert set(SURFACES) == set(State)


@given(scripts(), STARTS)
def test_ready_means_that_every_engine_was_read_lately_and_well(
    script: object, healthy_start: int
) -> None:
    """READY has no engine in doubt, out, silent, vanished or long unread; and none that is out or
    silent is ever served from."""
    health = POLICY.health
    allowed = UNREAD_TIMES * health.evidence_max_age_s + health.generation_timeout_s
    for _, _, after in play(script, healthy_start):
        if after.state in SERVING:
            for record in after.records.values():
                assert not record.raised and record.unanswered < health.bad_verdicts
        if after.state is State.READY:
            assert all(all(record.judged) for record in after.records.values())
            assert all(e.absent < health.bad_verdicts for e in after.engines.values())
            for key in after.keys:
                assert after.at - max(after.record(key).read_at, after.woke_at) <= allowed


@given(scripts(), STARTS)
def test_every_canary_has_an_engine_where_there_is_a_choice(
    script: object, healthy_start: int
) -> None:
    """Of several engines none is asked without its rank once the gate is through, but to clear
    what an unknown one wrote."""
    for _, _, after in play(script, healthy_start):
        want = wants(after, after.at, POLICY)
        if want is None or after.state is State.SMOKE or after.record(ANY).doubted:
            continue
        assert (want.rank is not None) is bool(after.ranks)
        assert want.engine is None or after.ranks[want.engine] == want.rank
