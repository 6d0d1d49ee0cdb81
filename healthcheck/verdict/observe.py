"""A reading's facts folded into the memory: bookkeeping only, no state is changed here."""

from __future__ import annotations

from dataclasses import replace

from deploy.recipe import Health
from healthcheck import acceptance
from healthcheck.answers import Answer, Failure, FailureKind
from healthcheck.exposition import EngineSample, Exposition
from healthcheck.judge import CHANCE, Outcome, Step
from healthcheck.reasons import Note
from healthcheck.verdict.gate import gate_after
from healthcheck.verdict.memory import (
    NOTHING,
    SCORED,
    Alarm,
    EngineMemory,
    Gate,
    Generation,
    Memory,
    Policy,
    Reading,
    State,
)

# Of several canaries together; there are thousands a day, so far under that of one probe.
CANARIES_ARGMAX_CHANCE = 1e-8


def observe(memory: Memory, reading: Reading, policy: Policy) -> tuple[Memory, bool]:
    """The memory with the reading's facts in it, and whether another engine is behind the port."""
    seen = replace(memory, at=reading.at, outstanding=reading.outstanding)
    seen = _observe_transport(seen, reading, policy.health)
    new_engine = False
    if isinstance(reading.metrics, Exposition) and reading.metrics.engines:
        if _is_another(seen, reading.metrics):
            seen, new_engine = forget_engine(seen), True
        seen = _observe_engines(seen, memory, reading, reading.metrics, policy.health)
    elif reading.metrics is not None:
        seen = replace(
            seen,
            scrape=seen.scrape.after(Outcome.BAD, *_hysteresis(policy.health)),
            scrape_note=_scrape_note(reading.metrics),
        )
        if seen.identity_doubt and seen.scrape.raised and seen.transport.good:
            seen, new_engine = forget_engine(seen), True
    if reading.generation is not None and reading.generation.epoch == seen.epoch:
        seen = _observe_generation(seen, reading.generation, policy.health)
    return _observe_silence(seen, memory, reading, policy.health), new_engine


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
    elif gone and gone_since is None:
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
        identity_doubt=False,
        generation=Alarm(),
        blind=Alarm(),
        unanswered_since=None,
        unanswered_by=None,
        silent=0,
        over_stall=0,
        stale=0,
        gate=Gate(round=memory.gate.round + 1),
        argmax_chance=1.0,
        scored_at={},
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
    engines = {
        e.engine: _observe_engine(memory.engines.get(e.engine), e, reading.at, counts, health)
        for e in seen.engines
    }
    stepped = any(
        name in memory.engines and e.moved_at == reading.at for name, e in engines.items()
    )
    seen_now = replace(
        memory,
        engines=engines,
        process_start=seen.process_start,
        identity_doubt=False,
        sampled_at=reading.at,
        scrape=memory.scrape.after(Outcome.GOOD, *_hysteresis(health)),
        progress_at=reading.at if stepped else memory.progress_at,
    )
    answered = stepped and seen_now.awaited_step_at == reading.at
    return replace(seen_now, unanswered_since=None, unanswered_by=None) if answered else seen_now


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
        writes=sample.generation_tokens > known.sample.generation_tokens,
    )
    engine = _observe_drafting(engine, known.sample, health)
    return _observe_acceptance(engine, known.sample, counts, health)


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


def _observe_sampling(memory: Memory, generation: Generation) -> tuple[float, Generation]:
    """The chance that sampling gave only top tokens so far, and the generation, whose sampling is
    bad when that has become incredible."""
    sampling = next((f for f in generation.findings if f.check == "sampling"), None)
    chance = sampling.evidence.get(CHANCE) if sampling is not None else None
    if sampling is None or not isinstance(chance, float):
        return memory.argmax_chance, generation
    if sampling.outcome is Outcome.GOOD:
        return 1.0, generation
    together = memory.argmax_chance * chance
    if together >= CANARIES_ARGMAX_CHANCE:
        return together, generation
    bad = replace(
        sampling, outcome=Outcome.BAD, evidence={**sampling.evidence, "chance_together": together}
    )
    rest = tuple(f for f in generation.findings if f is not sampling)
    return together, replace(generation, findings=(*rest, bad))


def _observe_generation(memory: Memory, generation: Generation, health: Health) -> Memory:
    argmax_chance, generation = _observe_sampling(memory, generation)
    outcome = generation.outcome
    seen = replace(
        memory,
        argmax_chance=argmax_chance,
        generations=memory.generations + 1,
        last_generation=generation,
        generation=memory.generation.after(outcome, health.bad_verdicts, 1),
        blind=memory.blind.after(
            Outcome.BAD if outcome is Outcome.UNKNOWN else Outcome.GOOD, health.bad_verdicts, 1
        ),
    )
    if generation.ours:
        return seen
    if not generation.answered:
        since = memory.unanswered_since
        seen = replace(
            seen,
            unanswered_since=generation.started_at if since is None else since,
            unanswered_by=generation.engine,
        )
    elif memory.unanswered_by in (None, generation.engine):
        seen = replace(seen, unanswered_since=None, unanswered_by=None)
    if generation.engine is not None and generation.engine in seen.engines:
        asked = replace(seen.engines[generation.engine], asked_at=memory.at)
        seen = replace(seen, engines={**seen.engines, generation.engine: asked})
    if generation.step in SCORED and generation.completion is not None:
        scored_at = {**seen.scored_at, generation.engine: generation.ended_at}
        seen = replace(seen, scored_at=scored_at)
    if outcome is Outcome.GOOD and generation.step is not Step.WARM_UP:
        seen = replace(seen, good_generation_at=generation.ended_at)
    if memory.state is State.SMOKE:
        seen = replace(seen, gate=gate_after(seen.gate, generation, memory.at, health))
    return seen


def _observe_silence(memory: Memory, earlier: Memory, reading: Reading, health: Health) -> Memory:
    """Counts the readings in which work waited and nothing moved."""
    moved = memory.awaited_step_at == reading.at
    seen = replace(memory, silent=earlier.silent + 1 if memory.asked and not moved else 0)
    # A server that answers /health but hides its scheduler may be busy: restarting it is a guess.
    hidden = reading.hides_scheduler
    stalled = seen.stuck_for(reading.at) >= health.stall_budget_s and not hidden
    age = seen.evidence_age_s(reading.at)
    stale = age is not None and age >= health.evidence_max_age_s
    return replace(
        seen,
        over_stall=earlier.over_stall + 1 if stalled else 0,
        stale=earlier.stale + 1 if stale else 0,
    )
