"""The next state of a memory: one function for each state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from deploy.recipe import Health
from healthcheck.client.answers import Failure
from healthcheck.client.exposition import Exposition
from healthcheck.client.listing import Listing
from healthcheck.judge import Outcome, Step
from healthcheck.reasons import Note
from healthcheck.verdict import vitals
from healthcheck.verdict.gate import GATE_PAUSE_LIMIT_S, planned
from healthcheck.verdict.memory import TIMELINE_KEPT, Memory, Transition
from healthcheck.verdict.notes import (
    _finding_note,
    acceptance_notes,
    gate_notes,
    silence_note,
    stall_note,
    stuck_engines,
    text_notes,
    unanswered_notes,
    unseen_notes,
)
from healthcheck.verdict.observe import forget_engine, observe
from healthcheck.verdict.readings import Policy, Reading
from healthcheck.verdict.states import State

# A pause of the gate doubles with every new engine up to its limit, which so many doublings reach.
MOST_RENEWALS = 8

# What /health says while a server loads, before it listens and before it answers.
ORDINARY_AT_START = frozenset({"server.refused", "server.reset", "server.timeout"})


def advance(memory: Memory, reading: Reading, policy: Policy) -> Memory:
    """The memory after one more reading."""
    seen, new_engine = observe(memory, reading, policy)
    if reading.draining or memory.state is State.DRAINING:
        return _enter(seen, State.DRAINING, [Note("operator.drain")])
    if new_engine and memory.state is not State.LOADING:
        return _enter_smoke(_renewed(seen, policy.health), Note("engine.new"), policy.health)
    return _DECIDE[memory.state](seen, reading, policy)


def _enter(memory: Memory, state: State, notes: Sequence[Note]) -> Memory:
    if state is memory.state:
        return replace(memory, notes=tuple(notes))
    code = notes[0].code if notes else ""
    timeline = (*memory.timeline, Transition(memory.at, state, code))[-TIMELINE_KEPT:]
    return replace(memory, state=state, since=memory.at, notes=tuple(notes), timeline=timeline)


def _start_gate(memory: Memory, note: Note, health: Health) -> Memory:
    """SMOKE with a gate of its own; what is known of the process, its counters too, stays known."""
    fresh = replace(
        forget_engine(memory),
        engines=memory.engines,
        process_start=memory.process_start,
        passed=memory.passed,
    )
    return _enter_smoke(fresh, note, health)


def _renewed(memory: Memory, health: Health) -> Memory:
    """A new engine's gate. One that follows another without READY between waits ever longer: two
    servers behind one address are a new engine at every look."""
    pause = health.scrape_interval_s * (2 ** min(memory.renewals, MOST_RENEWALS) - 1)
    gate = replace(memory.gate, not_before=memory.at + min(pause, GATE_PAUSE_LIMIT_S))
    return replace(memory, gate=gate, renewals=memory.renewals + 1)


def _enter_smoke(memory: Memory, note: Note, health: Health) -> Memory:
    return _enter(replace(memory, gate=planned(memory, health)), State.SMOKE, [note])


def _loading(memory: Memory, reading: Reading, policy: Policy) -> Memory:
    note, served = _serves(reading, policy)
    if served is not None:
        listed = replace(memory, model=served, max_model_len=_longest(reading))
        return _start_gate(listed, Note("gate.running", "the server is up"), policy.health)
    notes = [note]
    if reading.transport is not Outcome.GOOD:
        told = reading.health_note
        notes += [told] if told.code not in ORDINARY_AT_START else []
    notes += vitals.lately_ended(memory)
    waited = reading.at - memory.since
    if waited >= policy.health.start_budget_s:
        notes.insert(0, Note("start.over_budget", f"{waited:.0f} s"))
    return _enter(memory, State.LOADING, notes)


def _serves(reading: Reading, policy: Policy) -> tuple[Note, str | None]:
    """The model to ask for if the server is up and lists it, else the reason why not."""
    if reading.transport is not Outcome.GOOD:
        return Note("start.waiting", reading.health_note.code), None
    listing = reading.listing
    if listing is None:
        return Note("start.waiting"), None
    if isinstance(listing, Note):
        return listing, None
    wanted = policy.model or next(iter(listing.ids), None)
    if wanted is None or wanted not in listing.ids:
        seen = ", ".join(listing.ids)[:120] or "none"
        return Note("config.wrong_model", f"expected {wanted}, served {seen}"), None
    return Note("gate.running"), wanted


def _longest(reading: Reading) -> int | None:
    return reading.listing.max_model_len if isinstance(reading.listing, Listing) else None


def _smoke(memory: Memory, reading: Reading, policy: Policy) -> Memory:
    dead = _death(memory, reading, policy.health)
    if dead is not None:
        return _enter(memory, State.DEAD, [dead])
    if isinstance(reading.health, Failure) and reading.transport is Outcome.BAD:
        return _enter(memory, State.LOADING, [reading.health_note])
    if Step.EVERY_ENGINE not in memory.gate.steps and memory.ranks:
        steps = (*memory.gate.steps, Step.EVERY_ENGINE)  # /metrics is there by now
        memory = replace(memory, gate=replace(memory.gate, steps=steps))
    if memory.gate.passed:
        return _settle(memory, policy)
    if memory.over_stall >= policy.health.stall_confirmations:
        return _enter(memory, State.STALLED, [stall_note(memory)])
    return _enter(memory, State.SMOKE, gate_notes(memory, policy.health))


def _serving(memory: Memory, reading: Reading, policy: Policy) -> Memory:
    """READY, DEGRADED and NOT_READY."""
    health = policy.health
    dead = _death(memory, reading, health)
    if dead is not None:
        return _enter(memory, State.DEAD, [dead, *vitals.lately_ended(memory)])
    if memory.over_stall >= health.stall_confirmations:
        return _enter(memory, State.STALLED, [stall_note(memory)])
    down = _down(memory, reading, health)
    if down:
        held = replace(memory, recovery_good=0, recovery_generation=False)
        return _enter(held, State.NOT_READY, down)
    if memory.state is State.NOT_READY:
        return _recover(memory, reading, policy)
    return _settle(memory, policy)


def _death(memory: Memory, reading: Reading, health: Health) -> Note | None:
    """The reason to call the engine dead: 503, or nothing listens, for long. A proxy says 503 for
    a moment as well. A name or a certificate that is gone takes it out of rotation, but no restart
    mends that."""
    gone_for = 0.0 if memory.gone_since is None else reading.at - memory.gone_since
    closed = isinstance(reading.health, Failure) and reading.health.closed
    if not memory.transport.raised or not (memory.said_dead or closed):
        return None
    if gone_for < health.dead_after_s:
        return None
    code = "server.engine_dead" if memory.said_dead else reading.health_note.code
    return Note(code, f"for {gone_for:.0f} s")


def _down(memory: Memory, reading: Reading, health: Health) -> list[Note]:
    """The reasons not to send work now."""
    notes = [*vitals.died(memory), *vitals.stopped(memory)]
    if memory.transport.raised:
        notes.append(reading.health_note)
    notes += text_notes(memory, raised=True)
    silent = unanswered_notes(memory, health)
    notes += silent
    stuck = memory.stuck_for(reading.at)
    deadlocks = vitals.deadlocks(memory, reading)
    notes += deadlocks
    looks = [r.silent for r in memory.records.values()]
    confirmed = max([0, *looks, *[e.unmoved for e in memory.engines.values()]])
    # With /metrics hidden, work that was seen last may go on: only the age of evidence tells then.
    there = reading.transport is not Outcome.BAD
    hidden = memory.busy and there and not isinstance(reading.metrics, Exposition)
    if stuck >= health.readiness_budget_s and confirmed >= health.bad_verdicts and not hidden:
        # What came instead of an answer tells more than that none did.
        told = deadlocks or (silent and not stuck_engines(memory))
        notes += (
            []
            if told
            else [silence_note(memory, stuck), *vitals.ranks_asleep(memory, stuck_engines(memory))]
        )
    if memory.stale >= health.bad_verdicts:
        notes.append(Note("evidence.stale", f"{memory.evidence_age_s(reading.at):.0f} s"))
    if health.acceptance_effect == "not-ready":
        notes += acceptance_notes(memory)
    if vitals.turns_away(health):
        notes += vitals.card_errors(memory)
    return notes


def _recover(memory: Memory, reading: Reading, policy: Policy) -> Memory:
    bad_now = memory.transport.bad or any(
        r.unanswered or (r.judged and not r.good) for r in memory.records.values()
    )
    good_now = reading.transport is Outcome.GOOD
    if bad_now:
        memory = replace(memory, recovery_good=0, recovery_generation=False)
    elif good_now:
        fresh = reading.generation
        passed = fresh is not None and fresh.epoch == memory.epoch
        good = passed and fresh is not None and fresh.outcome is Outcome.GOOD
        memory = replace(
            memory,
            recovery_good=memory.recovery_good + 1,
            recovery_generation=memory.recovery_generation or good,
        )
    enough = memory.recovery_good >= policy.health.good_verdicts
    sure = not memory.identity_doubt and memory.uncounted_since is None
    if enough and memory.recovery_generation and sure:
        return _settle(memory, policy)
    causes = [n for n in memory.notes if n.code != "recovery.pending"]
    return _enter(memory, State.NOT_READY, [Note("recovery.pending"), *causes])


def _settle(memory: Memory, policy: Policy) -> Memory:
    """READY, or DEGRADED with its reasons."""
    memory = replace(memory, renewals=0, passed=not memory.transport.bad)
    notes = text_notes(memory, raised=False)
    if memory.unclear.raised and memory.unclear_note is not None:
        notes.append(memory.unclear_note)
    if memory.scrape.raised and memory.scrape_note is not None:
        notes.append(memory.scrape_note)
    if memory.blind.raised and memory.last_generation is not None:
        notes += [
            _finding_note(f)
            for f in memory.last_generation.findings
            if f.outcome is Outcome.UNKNOWN
        ]
    notes += unseen_notes(memory, policy.health)
    if policy.health.acceptance_effect != "not-ready":
        notes += acceptance_notes(memory)
    if not vitals.turns_away(policy.health):
        notes += vitals.card_errors(memory)
    return _enter(memory, State.DEGRADED if notes else State.READY, notes)


def _stalled(memory: Memory, reading: Reading, policy: Policy) -> Memory:
    dead = _death(memory, reading, policy.health)
    if dead is not None:
        return _enter(memory, State.DEAD, [dead])
    fresh = reading.generation
    answered = fresh is not None and fresh.epoch == memory.epoch and fresh.answered
    # Another engine's step or answer is no sign of the one that stalled.
    if (answered or memory.progress_at == reading.at) and not memory.over_stall:
        return _start_gate(memory, Note("gate.running", "it moves again"), policy.health)
    return _enter(memory, State.STALLED, memory.notes)


def _dead(memory: Memory, reading: Reading, policy: Policy) -> Memory:
    _, served = _serves(reading, policy)
    if served is None:
        return _enter(memory, State.DEAD, memory.notes)
    listed = replace(memory, model=served, max_model_len=_longest(reading))
    return _start_gate(listed, Note("gate.running", "the server is up again"), policy.health)


_DECIDE = {
    State.LOADING: _loading,
    State.SMOKE: _smoke,
    State.READY: _serving,
    State.DEGRADED: _serving,
    State.NOT_READY: _serving,
    State.STALLED: _stalled,
    State.DEAD: _dead,
}
