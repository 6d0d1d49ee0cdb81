"""The reasons that a memory gives, beside or for its state."""

from __future__ import annotations

import math

from deploy.recipe import Health
from healthcheck.judge import Finding, Outcome
from healthcheck.reasons import Note
from healthcheck.verdict import vitals
from healthcheck.verdict.engines import COUNTED_WITHIN_S
from healthcheck.verdict.memory import UNREAD_TIMES, Memory
from healthcheck.verdict.readings import UNREAD
from healthcheck.verdict.records import ANY


def stall_note(memory: Memory) -> Note:
    """That the engine stalls, since when, and what it is at."""
    return Note("progress.stalled", f"{memory.stuck_for(memory.at):.0f} s{_doing(memory)}")


def gate_notes(memory: Memory, health: Health) -> list[Note]:
    """What was bad in the start gate, what could not be told, else the step it is at."""
    gate = memory.gate
    notes = [_finding_note(f) for f in gate.bad]
    if gate.failures:
        notes.append(Note("gate.failed", f"{gate.failures} in a row"))
    last = memory.last_generation
    if last is not None and last.epoch == memory.epoch and last.outcome is Outcome.UNKNOWN:
        notes += [_finding_note(f) for f in last.findings if f.outcome is Outcome.UNKNOWN]
    if memory.stuck_for(memory.at) >= health.readiness_budget_s:
        told = f"{memory.stuck_for(memory.at):.0f} s{_doing(memory)}"
        notes.append(Note("gate.no_progress", told))
    notes += vitals.stopped(memory)
    return notes or [Note("gate.running", gate.step.value if gate.step else "")]


def unanswered_notes(memory: Memory, health: Health) -> list[Note]:
    """Of every engine whose answers do not come: what came instead of the last one, if anything."""
    notes, last = [], memory.last_generation
    for key, record in memory.records.items():
        if record.unanswered < health.bad_verdicts:
            continue
        note = Note("generation.unanswered", f"{record.unanswered} in a row{_by(key)}")
        if last is not None and (last.engine or ANY) == key:
            came = [f for f in last.findings if f.code in UNREAD and f.code != "generation.timeout"]
            note = _finding_note(came[0], key) if came else note
        notes.append(note)
    return notes


def stuck_engines(memory: Memory) -> list[str]:
    """The engines that have work and make no step."""
    return [name for name, e in memory.engines.items() if e.stuck_for(memory.at) > 0]


def silence_note(memory: Memory, seconds: float) -> Note:
    """That no step was made for so long, by whom, and what they are at."""
    names = stuck_engines(memory)
    which = f", engine {' '.join(names)}" if names and len(memory.engines) > 1 else ""
    return Note("progress.none", f"{seconds:.0f} s{which}{_doing(memory)}")


def _doing(memory: Memory) -> str:
    """What those that make no step are at."""
    return vitals.doing(memory, stuck_engines(memory))


def text_notes(memory: Memory, raised: bool) -> list[Note]:
    """What was bad in the last bad text of every engine that is out for it, or else in doubt."""
    return [
        _finding_note(finding, key)
        for key, record in memory.records.items()
        if (record.raised if raised else not record.raised and not all(record.judged))
        for finding in record.bad
    ]


def _by(key: str) -> str:
    """The engine, where one was chosen."""
    return "" if key == ANY else f", engine {key}"


def unseen_notes(memory: Memory, health: Health) -> list[Note]:
    """What READY needs to have been seen of every engine, and was not: that it is there, what it
    writes, and that /metrics is of the server that answers."""
    notes = [
        Note("engine.vanished", f"engine {name}")
        for name, engine in memory.engines.items()
        if engine.absent >= health.bad_verdicts
    ]
    if memory.uncounted_since is not None and memory.at - memory.uncounted_since > COUNTED_WITHIN_S:
        notes.append(Note("metrics.uncounted"))
    # Of a busy server the next text is read at that age; it has the time of a generation for it.
    allowed = UNREAD_TIMES * health.evidence_max_age_s + health.generation_timeout_s
    for key in memory.keys:
        read_at = memory.record(key).read_at
        if memory.at - max(read_at, memory.woke_at) > allowed:
            age = (
                f"{memory.at - read_at:.0f} s" if math.isfinite(read_at) else "not since it is back"
            )
            notes.append(Note("text.unread", age + _by(key)))
    return notes


def acceptance_notes(memory: Memory) -> list[Note]:
    """Of every engine that does not draft, or whose acceptance is out of its band."""
    notes = []
    for name, engine in memory.engines.items():
        if engine.not_drafting.raised:
            notes.append(Note("speculation.not_drafting", f"engine {name}"))
        if not engine.windows:
            continue
        last = engine.windows[-1]
        rates = " ".join(f"{a / last.drafts:.2f}" for a in last.accepted_at)
        detail = f"engine {name}, {last.drafts:.0f} drafts, by position {rates}"
        for code, alarm in (
            ("acceptance.low", engine.low),
            ("acceptance.collapsed", engine.collapsed),
            ("acceptance.high", engine.high),
        ):
            if alarm.raised:
                notes.append(Note(code, detail))
    return notes


def _finding_note(finding: Finding, key: str = ANY) -> Note:
    detail = ", ".join(f"{k} {v}" for k, v in finding.evidence.items())
    told = f"{finding.check}: {detail}"
    return Note(finding.code or "generation.failed", told[: 200 - len(_by(key))] + _by(key))
