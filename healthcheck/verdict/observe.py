"""A reading's facts folded into the memory: bookkeeping only, no state is changed here."""

from __future__ import annotations

import math
from dataclasses import replace

from deploy.recipe import Health
from healthcheck.client.answers import Answer, Failure, FailureKind
from healthcheck.client.exposition import EngineSample, Exposition
from healthcheck.judge import ARGMAX_CHANCE, CHANCE, Finding, Outcome, Step, acceptance, chance_of
from healthcheck.reasons import Note
from healthcheck.signs.model import Signs
from healthcheck.verdict import vitals
from healthcheck.verdict.gate import gate_after
from healthcheck.verdict.memory import (
    ANY,
    GATE,
    NOTHING,
    SCORED,
    TEXTS_KEPT,
    Alarm,
    EngineMemory,
    Gate,
    Generation,
    Memory,
    Policy,
    Reading,
    Record,
    State,
)

# Of several canaries together; there are thousands a day, so far under that of one probe.
CANARIES_ARGMAX_CHANCE = 1e-8
# vLLM counts a step just after it hands out the step's tokens: two scrapes later it is there.
COUNTED_WITHIN_S = 10.0


def observe(memory: Memory, reading: Reading, policy: Policy) -> tuple[Memory, bool]:
    """The memory with the reading's facts in it, and whether another engine is behind the port."""
    if reading.at - memory.at > longest_turn_s(policy.health):
        memory = _wake(memory, reading.at)
    signs = vitals.seen(reading, longest_turn_s(policy.health))
    seen = replace(memory, at=reading.at, outstanding=reading.outstanding, signs=signs)
    if signs is not None:
        seen = replace(seen, ended=signs.ended, born_at=_born(memory, reading, signs))
    seen = _observe_transport(seen, reading, policy.health)
    new_engine = False
    if isinstance(reading.metrics, Exposition) and reading.metrics.engines:
        if _is_another(seen, reading.metrics):
            seen, new_engine = forget_engine(seen), True
        elif memory.sampled_at is None and memory.gone_since is None:
            # It was up before us and has written: the gate was another service's, before us.
            wrote = any(e.generation_tokens for e in reading.metrics.engines)
            seen = replace(seen, passed=wrote)
        seen = _observe_engines(seen, memory, reading, reading.metrics, policy.health)
    elif reading.metrics is not None:
        seen = replace(
            seen,
            scrape=seen.scrape.after(Outcome.BAD, *_hysteresis(policy.health)),
            scrape_note=_scrape_note(reading.metrics),
        )
        if seen.identity_doubt and seen.scrape.raised and seen.transport.good:
            seen, new_engine = forget_engine(seen), True
    seen = _answered_by_steps(seen, reading.at)
    if reading.generation is not None and reading.generation.epoch == seen.epoch:
        seen = _observe_generation(seen, reading.generation, policy.health)
    return _observe_silence(seen, memory, reading, policy.health), new_engine


def _born(memory: Memory, reading: Reading, signs: Signs) -> float:
    """When the server that is judged was started. One that was up is that until it is given up as
    DEAD, though its successor is there by then: what it died of is to be told."""
    down = memory.state in (State.LOADING, State.DEAD) or reading.transport is Outcome.GOOD
    return signs.started if down or math.isinf(memory.born_at) else memory.born_at


def longest_turn_s(health: Health) -> float:
    """The longest time between two readings of a service that runs: three questions and some."""
    return health.scrape_interval_s + 4 * health.probe_timeout_s


def _hysteresis(health: Health) -> tuple[int, int]:
    return health.bad_verdicts, health.good_verdicts


def _scrape_note(metrics: Exposition | Failure) -> Note:
    if isinstance(metrics, Failure):
        return Note("metrics.unavailable", metrics.detail)
    return Note("metrics.no_engine")


def _observe_transport(memory: Memory, reading: Reading, health: Health) -> Memory:
    outcome = reading.transport
    # Recovery has its own count, so one good answer ends the run of bad ones.
    transport = memory.transport.after(outcome, health.bad_verdicts, 1)
    answered = Outcome.BAD if outcome is Outcome.UNKNOWN else Outcome.GOOD
    gone = isinstance(reading.health, Failure) and outcome is Outcome.BAD
    gone_since = memory.gone_since
    if outcome is Outcome.GOOD:
        gone_since = None
    elif outcome is Outcome.BAD and gone_since is None:
        gone_since = reading.at
    said_dead = outcome is not Outcome.GOOD and (
        memory.said_dead or (isinstance(reading.health, Answer) and reading.health.status == 503)
    )
    return replace(
        memory,
        transport=transport,
        unclear=memory.unclear.after(answered, *_hysteresis(health)),
        unclear_note=_unclear_note(reading) if outcome is Outcome.UNKNOWN else memory.unclear_note,
        gone_since=gone_since,
        said_dead=said_dead,
        identity_doubt=memory.identity_doubt or (gone and transport.raised),
        # One look is enough: who calls a restarted server started has it killed while it loads.
        passed=memory.passed and not gone,
    )


def _unclear_note(reading: Reading) -> Note:
    """What to call a server whose /health tells nothing while it works."""
    late = isinstance(reading.health, Failure) and reading.health.kind is FailureKind.TIMEOUT
    return Note("server.slow") if late else reading.health_note


def _is_another(memory: Memory, seen: Exposition) -> bool:
    """A new process start, or a counter that went back. Without a start to compare, a server that
    was gone is another one."""
    if not memory.engines:
        return False
    if memory.process_start is not None and seen.process_start is not None:
        # The kernel's start time is printed with two digits; a service of one host does not move.
        if abs(memory.process_start - seen.process_start) > 0.5:
            return True
    elif memory.identity_doubt:
        return True
    return any(
        any(now < before for now, before in zip(e.counters, known.sample.counters, strict=False))
        for e in seen.engines
        if (known := memory.engines.get(e.engine)) is not None
    )


def forget_engine(memory: Memory) -> Memory:
    """Another engine: everything known of the last one is void, and its gate with it."""
    return replace(
        memory,
        epoch=memory.epoch + 1,
        engines={},
        process_start=None,
        passed=False,
        identity_doubt=False,
        blind=Alarm(),
        over_stall=0,
        stale=0,
        gate=Gate(round=memory.gate.round + 1),
        records={},
        counted_at=None,
        uncounted_since=None,
        good_generation_at=None,
        progress_at=None,
        recovery_good=0,
        recovery_generation=False,
    )


def _observe_engines(
    memory: Memory, earlier: Memory, reading: Reading, seen: Exposition, health: Health
) -> Memory:
    # Our own generations are no traffic, unless traffic has been turned away because of its
    # acceptance: then they are all there is to recover by.
    own = reading.outstanding or reading.generation or earlier.outstanding
    judged_by_own = memory.state is State.NOT_READY and health.acceptance_effect == "not-ready"
    counts = judged_by_own or not own
    shown = {
        e.engine: _observe_engine(memory.engines.get(e.engine), e, reading.at, counts, health)
        for e in seen.engines
    }
    if reading.outstanding is not None:  # one that was given up has left the queue already
        shown = {name: _observe_queue(e, reading.at) for name, e in shown.items()}
    stepped = any(name in memory.engines and e.moved_at == reading.at for name, e in shown.items())
    counted = any(e.writes for e in shown.values())
    missing = {
        name: replace(e, absent=e.absent + 1, work_since=None, unmoved=0, writes=False)
        for name, e in memory.engines.items()
        if name not in shown
    }
    left = {name for name, e in missing.items() if e.absent >= health.bad_verdicts}
    seen_now = replace(
        memory,
        engines={**missing, **shown},
        records={key: r for key, r in memory.records.items() if key not in left},
        process_start=seen.process_start,
        identity_doubt=False,
        sampled_at=reading.at,
        scrape=memory.scrape.after(Outcome.GOOD, *_hysteresis(health)),
        progress_at=reading.at if stepped else memory.progress_at,
        counted_at=reading.at if counted else memory.counted_at,
        uncounted_since=None if counted else memory.uncounted_since,
    )
    # Who is first seen now has the time of all others until its text must have been read; who was
    # gone has not.
    back = {n for n, e in memory.engines.items() if e.absent >= health.bad_verdicts and n in shown}
    fresh = {
        key: Record() if key in back else Record(read_at=reading.at)
        for key in seen_now.keys
        if key not in seen_now.records
    }
    return replace(seen_now, records={**seen_now.records, **fresh})


def _observe_engine(
    known: EngineMemory | None, sample: EngineSample, at: float, counts: bool, health: Health
) -> EngineMemory:
    if known is None:
        return EngineMemory(sample, at, at if sample.has_work else None)
    moved = sample.trace != known.sample.trace
    if not sample.has_work:
        work_since = None
    else:
        work_since = at if known.work_since is None else known.work_since
    engine = replace(
        known,
        sample=sample,
        moved_at=at if moved else known.moved_at,
        work_since=work_since,
        unmoved=0 if moved or work_since is None else known.unmoved + 1,
        absent=0,
        writes=sample.generation_tokens > known.sample.generation_tokens,
    )
    engine = _observe_drafting(engine, known.sample, health)
    return _observe_acceptance(engine, known.sample, counts, health)


def _observe_queue(engine: EngineMemory, at: float) -> EngineMemory:
    """What waits is told at a step; of an idle engine, always."""
    told = engine.moved_at == at or engine.work_since is None
    return replace(engine, free_at=at) if told and not engine.sample.waiting else engine


def _observe_drafting(engine: EngineMemory, before: EngineSample, health: Health) -> EngineMemory:
    """A window of decoded tokens without one draft is bad; any draft is good. The tokens of
    prefills do not count: a client that asks for one token makes no draft."""
    now = engine.sample
    if now.speculation is None or before.speculation is None:
        return engine
    needed = _hysteresis(health)
    if now.speculation.drafts > before.speculation.drafts:
        drafting = engine.not_drafting.after(Outcome.GOOD, *needed)
        return replace(engine, undrafted=0.0, not_drafting=drafting)
    if now.decoded_tokens is None or before.decoded_tokens is None:
        return engine
    undrafted = engine.undrafted + max(now.decoded_tokens - before.decoded_tokens, 0.0)
    if undrafted < health.acceptance_window_drafts:
        return replace(engine, undrafted=undrafted)
    drafting = engine.not_drafting.after(Outcome.BAD, *needed)
    return replace(engine, undrafted=0.0, not_drafting=drafting)


def _observe_acceptance(
    engine: EngineMemory, before: EngineSample, counts: bool, health: Health
) -> EngineMemory:
    if not counts or engine.sample.speculation is None or before.speculation is None:
        return engine
    window = engine.window.plus(engine.sample.speculation.since(before.speculation))
    if window.drafts < health.acceptance_window_drafts:
        return replace(engine, window=window)
    windows = (*engine.windows, window)[-acceptance.WINDOWS_KEPT :]
    needed = _hysteresis(health)
    return replace(
        engine,
        window=NOTHING,
        windows=windows,
        low=engine.low.after(acceptance.low(window, health.acceptance_floor), *needed),
        collapsed=engine.collapsed.after(acceptance.collapsed(window), *needed),
        high=engine.high.after(acceptance.high(windows, health.acceptance_ceiling), *needed),
    )


def _wake(memory: Memory, at: float) -> Memory:
    """After a pause of our own: nothing was looked at, so no clock ran."""
    engines = {
        name: replace(e, work_since=None if e.work_since is None else at, unmoved=0)
        for name, e in memory.engines.items()
    }
    records = {
        key: replace(r, unanswered_since=None, silent=0) for key, r in memory.records.items()
    }
    return replace(
        memory,
        woke_at=at,
        engines=engines,
        records=records,
        gone_since=None if memory.gone_since is None else at,
        over_stall=0,
        stale=0,
    )


def _observe_sampling(before: float, generation: Generation) -> tuple[float, Generation]:
    """The chance that sampling gave only top tokens so far, and the generation, whose sampling is
    bad when that has become incredible."""
    sampling = next((f for f in generation.findings if f.check == "sampling"), None)
    chance = sampling.evidence.get(CHANCE) if sampling is not None else None
    if sampling is None or not isinstance(chance, float):
        return before, generation
    if sampling.outcome is Outcome.GOOD:
        return 1.0, generation
    together = before * chance
    if together >= CANARIES_ARGMAX_CHANCE:
        return together, generation
    bad = replace(
        sampling, outcome=Outcome.BAD, evidence={**sampling.evidence, "chance_together": together}
    )
    rest = tuple(f for f in generation.findings if f is not sampling)
    return together, replace(generation, findings=(*rest, bad))


def _observe_text(memory: Memory, generation: Generation) -> tuple[Memory, Generation]:
    """A canary's good text is kept; one that was there before is no answer to it, but for a text
    that comes again by itself."""
    made = generation.completion
    if made is None or generation.step in GATE or generation.outcome is Outcome.BAD:
        return memory, generation
    chance = chance_of(made)
    if made.tokens in memory.texts and (chance is None or chance < ARGMAX_CHANCE):
        again = Finding("own text", Outcome.BAD, "text.replayed", {"chance": chance})
        generation = replace(generation, findings=(*generation.findings, again))
    return replace(memory, texts=(*memory.texts, made.tokens)[-TEXTS_KEPT:]), generation


def _observe_generation(memory: Memory, generation: Generation, health: Health) -> Memory:
    if not generation.answered and generation.started_at < memory.woke_at:
        # Its time ran out while we did not run.
        return replace(memory, generations=memory.generations + 1)
    memory, generation = _observe_text(memory, generation)
    key = generation.engine or ANY
    record = memory.record(key)
    argmax_chance, generation = _observe_sampling(record.argmax_chance, generation)
    outcome = generation.outcome
    record = replace(record, asked_at=memory.at, argmax_chance=argmax_chance)
    if not generation.ours:
        record = (
            replace(record, unanswered=0, unanswered_since=None)
            if generation.answered
            else _unanswered(memory, key, record, generation)
        )
    if generation.wrote:
        scored = generation.step in SCORED
        record = replace(
            record,
            read_at=generation.ended_at,
            scored_at=generation.ended_at if scored else record.scored_at,
        )
    if memory.state is not State.SMOKE:
        bad = tuple(f for f in generation.findings if f.outcome is Outcome.BAD)
        record = record.after(outcome, bad, health)
    keys = memory.ranks if generation.step is Step.EVERY_ENGINE else (key,)
    seen = replace(
        memory,
        records={**memory.records, **dict.fromkeys(keys, record)},
        generations=memory.generations + 1,
        last_generation=generation,
        blind=memory.blind.after(
            Outcome.BAD if outcome is Outcome.UNKNOWN else Outcome.GOOD, health.bad_verdicts, 1
        ),
    )
    if generation.ours:
        return seen
    if generation.wrote:
        seen = _observe_answer(seen, key, generation)
    if outcome is Outcome.GOOD and generation.step is not Step.WARM_UP:
        seen = replace(seen, good_generation_at=generation.ended_at)
    if memory.state is State.SMOKE:
        seen = replace(seen, gate=gate_after(seen.gate, generation, memory.at, health))
    return seen


def _unanswered(memory: Memory, key: str, record: Record, generation: Generation) -> Record:
    """No answer came. That its time ran out tells something only where the question was let in: the
    queue was seen empty after it, and no work is hidden."""
    engines = [memory.engines[key]] if key in memory.engines else memory.engines.values()
    hidden = memory.sampled_at is None or memory.sampled_at < generation.started_at
    let_in = any(e.free_at > generation.started_at for e in engines)
    waited = generation.timed_out and not let_in and (memory.busy or not hidden)
    since = record.unanswered_since
    if since is None and memory.step_of(key) != memory.at:
        since = generation.started_at
    return replace(
        record,
        unanswered=record.unanswered + (not waited),
        unanswered_since=since,
    )


def _observe_answer(memory: Memory, key: str, generation: Generation) -> Memory:
    """Who writes an answer makes steps, whatever /metrics shows of them; that it shows none is
    noted."""
    if key == ANY and len(memory.engines) == 1:
        (key,) = memory.engines
    engine = memory.engines.get(key)
    if engine is not None:
        wrote = replace(engine, moved_at=memory.at, unmoved=0)
        memory = replace(memory, engines={**memory.engines, key: wrote})
    visible = memory.sampled_at == memory.at
    counted = memory.counted_at is not None and memory.counted_at > generation.started_at
    if visible and not counted and memory.uncounted_since is None:
        memory = replace(memory, uncounted_since=memory.at)
    return memory


def _answered_by_steps(memory: Memory, at: float) -> Memory:
    """An engine that steps again has not stopped: no question to it is open any more."""
    records = {
        key: replace(r, unanswered_since=None) if memory.step_of(key) == at else r
        for key, r in memory.records.items()
    }
    return replace(memory, records=records)


def _observe_silence(memory: Memory, earlier: Memory, reading: Reading, health: Health) -> Memory:
    """Counts the readings in which work waited and nothing moved."""
    running = memory.outstanding
    asked = (ANY,) if running is None else (running.engine or ANY,)
    records = {key: memory.record(key) for key in (*memory.records, *asked)}
    for key, record in records.items():
        still = memory.asked_since(key) is not None and memory.step_of(key) != reading.at
        records[key] = replace(record, silent=record.silent + 1 if still else 0)
    seen = replace(memory, records=records)
    # A server that answers /health but hides its scheduler may be busy: restarting it is a guess.
    hidden = reading.hides_scheduler
    stalled = seen.stuck_for(reading.at) >= health.stall_budget_s and not hidden
    # In its first gate it may wait for a lock whose holder compiles in another container.
    if earlier.state is not State.SMOKE:
        stalled |= vitals.deadlocked_for(seen, reading) >= health.deadlock_budget_s
    proven = seen.proven_at
    age = 0.0 if proven is None else reading.at - max(proven, seen.woke_at)
    stale = age >= health.evidence_max_age_s
    return replace(
        seen,
        over_stall=earlier.over_stall + 1 if stalled else 0,
        stale=earlier.stale + 1 if stale else 0,
    )
