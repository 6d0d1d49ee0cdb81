"""What a scrape shows of each engine: steps, queue, drafting, acceptance."""

from __future__ import annotations

from dataclasses import replace

from deploy.recipe import Health
from healthcheck.client.exposition import EngineSample, Exposition
from healthcheck.judge import Outcome, acceptance
from healthcheck.verdict.memory import Memory
from healthcheck.verdict.readings import Reading
from healthcheck.verdict.records import NOTHING, EngineMemory, Record, hysteresis
from healthcheck.verdict.states import State

# vLLM counts a step just after it hands out the step's tokens: two scrapes later it is there.
COUNTED_WITHIN_S = 10.0


def observe_engines(
    memory: Memory, earlier: Memory, reading: Reading, seen: Exposition, health: Health
) -> Memory:
    """What a scrape shows of every engine; one that it shows no more is kept as absent."""
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
        scrape=memory.scrape.after(Outcome.GOOD, *hysteresis(health)),
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
    needed = hysteresis(health)
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
    needed = hysteresis(health)
    return replace(
        engine,
        window=NOTHING,
        windows=windows,
        low=engine.low.after(acceptance.low(window, health.acceptance_floor), *needed),
        collapsed=engine.collapsed.after(acceptance.collapsed(window), *needed),
        high=engine.high.after(acceptance.high(windows, health.acceptance_ceiling), *needed),
    )
