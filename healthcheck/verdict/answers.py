"""What an answer to us says of the engine that gave it, and what none says."""

from __future__ import annotations

from dataclasses import replace

from deploy.recipe import Health
from healthcheck.judge import ARGMAX_CHANCE, CHANCE, Finding, Outcome, Step, chance_of
from healthcheck.verdict import vitals
from healthcheck.verdict.gate import gate_after
from healthcheck.verdict.memory import TEXTS_KEPT, Memory
from healthcheck.verdict.readings import GATE, SCORED, Generation, Reading
from healthcheck.verdict.records import ANY, Record
from healthcheck.verdict.states import State

# Of several canaries together; there are thousands a day, so far under that of one probe.
CANARIES_ARGMAX_CHANCE = 1e-8


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


def observe_generation(memory: Memory, generation: Generation, health: Health) -> Memory:
    """What a generation of ours that has ended says of its engine, and of the start gate."""
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


def answered_by_steps(memory: Memory, at: float) -> Memory:
    """An engine that steps again has not stopped: no question to it is open any more."""
    records = {
        key: replace(r, unanswered_since=None) if memory.step_of(key) == at else r
        for key, r in memory.records.items()
    }
    return replace(memory, records=records)


def observe_silence(memory: Memory, earlier: Memory, reading: Reading, health: Health) -> Memory:
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
