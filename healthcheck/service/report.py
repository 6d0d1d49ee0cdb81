"""What the service shows: the report as JSON, the state as metrics and as lines for ?verbose.

Pure functions of a snapshot; ages are in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from healthcheck.client.exposition import Speculation
from healthcheck.flights.model import Flight
from healthcheck.judge import Finding, Outcome
from healthcheck.judge.acceptance import Acceptance
from healthcheck.reasons import Note
from healthcheck.service.settings import Settings
from healthcheck.service.snapshot import Snapshot
from healthcheck.signs import shown
from healthcheck.verdict import EngineMemory, Memory, Record, State
from healthcheck.words import one_line

SCHEMA = 1
_STATUS = {State.READY: "pass", State.DEGRADED: "warn"}


def as_json(snapshot: Snapshot, settings: Settings, now: float) -> dict[str, Any]:
    """The report, in the layout of application/health+json with our own fields beside."""
    memory, said = snapshot.memory, snapshot.verdict
    return {
        "status": _STATUS.get(said.state, "fail"),
        "serviceId": "dspark-health",
        "description": "verdict on a vLLM server that speculates with DSpark",
        "output": said.line,
        "schema": SCHEMA,
        "state": said.state.value,
        "in_state_s": now - memory.since,
        "ready": said.surfaces.ready,
        "reasons": [note_as_json(n) for n in said.notes],
        "cause": asdict(snapshot.cause) if snapshot.cause else None,
        "start": start(snapshot, now),
        "evidence_age_s": memory.evidence_age_s(now),
        "last_turn_age_s": now - snapshot.at,
        "turns": snapshot.turns,
        "model": memory.model,
        "max_model_len": memory.max_model_len,
        "gate": {
            "passed": memory.gate.passed,
            "step": memory.gate.step.value if memory.gate.step else None,
            "round": memory.gate.round,
            "failures": memory.gate.failures,
            "findings": {
                step.value: [finding_as_json(f) for f in findings]
                for step, findings in memory.gate.findings.items()
            },
        },
        "last_generation": _generation(snapshot, now),
        "generations": dict(snapshot.generations),
        "answers": {key or "any": _record(r, now) for key, r in memory.records.items()},
        "signs": shown.as_json(memory.signs, now),
        "flight": flight_as_json(snapshot.flight),
        "engines": {name: _engine(e, now) for name, e in memory.engines.items()},
        "checks": {
            f"{name}:response": [
                {
                    "status": "pass" if probe.success else "fail",
                    "observedValue": probe.duration_s,
                    "observedUnit": "s",
                    "age_s": now - probe.at,
                }
            ]
            for name, probe in snapshot.probes.items()
        },
        "timeline": [
            {"age_s": now - t.at, "state": t.state.value, "reason": t.code} for t in memory.timeline
        ],
        "provenance": snapshot.provenance,
        "configuration": settings.shown(),
    }


def start(snapshot: Snapshot, now: float) -> list[dict[str, object]]:
    """The last start: the wait for the server's port, the stages that the server's log tells of
    within it, and then the steps of the gate."""
    memory, log = snapshot.memory, snapshot.startup
    rows = [_waiting(memory, now)]
    for s in log.stages if log is not None else ():
        rows.append(_stage(f"log: {s.name}", s.seconds, s.done, s.progress_percent, s.detail))
    gate, outstanding = memory.gate, memory.outstanding
    for step in gate.steps:
        if step in gate.took:
            rows.append(_stage(f"gate: {step.value}", gate.took[step]))
        elif outstanding is not None and outstanding.step is step:
            rows.append(_stage(f"gate: {step.value}", now - outstanding.started_at, done=False))
    return rows


def _waiting(memory: Memory, now: float) -> dict[str, object]:
    """The wait for the server's port, as far as this service saw it."""
    began, ended = memory.started_at, now
    for change in memory.timeline:
        if change.state in (State.LOADING, State.DEAD):
            began, ended = change.at, now
        elif change.state is State.SMOKE:
            ended = min(ended, change.at) if change.at >= began else ended
    up = memory.state not in (State.LOADING, State.DEAD)
    return _stage("waiting for the server", ended - began, done=up)


def _stage(
    name: str,
    seconds: float | None,
    done: bool = True,
    percent: int | None = None,
    detail: str = "",
) -> dict[str, object]:
    return {
        "stage": name,
        "seconds": seconds,
        "done": done,
        "progress_percent": percent,
        "detail": detail,
    }


def note_as_json(note: Note) -> dict[str, str]:
    """A reason with all its words."""
    reason = note.reason
    return {
        "code": note.code,
        "kind": reason.kind.value,
        "meaning": reason.meaning,
        "remedy": reason.remedy,
        "detail": note.detail,
    }


def finding_as_json(finding: Finding) -> dict[str, object]:
    """One check's result with its evidence."""
    return {
        "check": finding.check,
        "outcome": finding.outcome.value,
        "code": finding.code,
        "evidence": {k: _finite(v) for k, v in finding.evidence.items()},
    }


def flight_as_json(flight: Flight | None) -> dict[str, str] | None:
    """The last archive of a stuck server: where it lies, for what and when it was made."""
    if flight is None:
        return None
    at = flight.at.isoformat(timespec="seconds")
    return {"path": str(flight.path), "why": flight.why, "reason": flight.code, "at": at}


def _finite(value: object) -> object:
    """JSON has no NaN: such a number is named instead."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _generation(snapshot: Snapshot, now: float) -> dict[str, object] | None:
    last = snapshot.memory.last_generation
    if last is None:
        return None
    return {
        "step": last.step.value,
        "outcome": last.outcome.value,
        "age_s": now - last.ended_at,
        "duration_s": last.ended_at - last.started_at,
        "findings": [finding_as_json(f) for f in last.findings],
    }


def _record(record: Record, now: float) -> dict[str, object]:
    """What an engine answered to us; ages None where it never did."""
    read, asked = record.read_at, record.asked_at
    return {
        "good": record.judged.count(True),
        "bad": record.judged.count(False),
        "out": record.raised,
        "unanswered": record.unanswered,
        "read_s_ago": now - read if math.isfinite(read) else None,
        "asked_s_ago": now - asked if math.isfinite(asked) else None,
    }


def _engine(engine: EngineMemory, now: float) -> dict[str, object]:
    sample = engine.sample
    return {
        "running": sample.running,
        "waiting": sample.waiting,
        "cache_usage": sample.cache_usage,
        "prompt_tokens": sample.prompt_tokens,
        "generation_tokens": sample.generation_tokens,
        "moved_s_ago": now - engine.moved_at,
        "stuck_s": engine.stuck_for(now),
        "speculation": _rates(sample.speculation),
        "last_window": _rates(engine.windows[-1]) if engine.windows else None,
        "window_drafts": engine.window.drafts,
    }


def _rates(counted: Speculation | None) -> dict[str, object] | None:
    """Acceptance by these counters; None where no draft was counted."""
    seen = Acceptance.of(counted) if counted is not None else None
    return None if seen is None else asdict(seen)


def metrics(snapshot: Snapshot, now: float, turns_on: bool) -> Iterator[Metric]:
    """The state as Prometheus families; names of probes as blackbox_exporter has them."""
    memory, said = snapshot.memory, snapshot.verdict
    success = GaugeMetricFamily("probe_success", "Last probe answered 200", labels=["probe"])
    took = GaugeMetricFamily("probe_duration_seconds", "Time of the last probe", labels=["probe"])
    for name, probe in snapshot.probes.items():
        success.add_metric([name], float(probe.success))
        took.add_metric([name], probe.duration_s)
    if memory.last_generation is not None:
        last = memory.last_generation
        success.add_metric(["generation"], float(last.outcome is Outcome.GOOD))
        took.add_metric(["generation"], last.ended_at - last.started_at)
    yield success
    yield took
    state = GaugeMetricFamily("dspark_health_state", "1 for the present state", labels=["state"])
    for each in State:
        state.add_metric([each.value], float(each is said.state))
    yield state
    reason = GaugeMetricFamily("dspark_health_reason", "1 for each present reason", labels=["code"])
    for code in sorted({n.code for n in said.notes}):
        reason.add_metric([code], 1.0)
    yield reason
    for name, text, value in (
        ("ready", "1 if /readyz passes", float(said.surfaces.ready)),
        ("loop_turning", "1 while the service's own loop turns", float(turns_on)),
        ("state_age_seconds", "Time in the present state", now - memory.since),
        ("turn_age_seconds", "Time since the last turn", now - snapshot.at),
        ("evidence_age_seconds", "Time since proof of work", memory.evidence_age_s(now)),
        ("stuck_seconds", "Time that work waits without a step", memory.stuck_for(snapshot.at)),
        ("gate_failures", "Failed rounds of the gate in a row", float(memory.gate.failures)),
    ):
        if value is not None:
            yield GaugeMetricFamily(f"dspark_health_{name}", text, value=value)
    yield CounterMetricFamily("dspark_health_turns", "Turns of the loop", value=snapshot.turns)
    errors = CounterMetricFamily(
        "dspark_health_errors", "Errors of the service itself", labels=["where"]
    )
    for where in ("turn", "generation", "log"):
        errors.add_metric([where], snapshot.errors.get(where, 0))
    yield errors
    made = CounterMetricFamily(
        "dspark_health_generations", "Generations asked for", labels=["step", "outcome"]
    )
    for key, count in snapshot.generations.items():
        made.add_metric(key.split("/"), count)
    yield made
    yield from _acceptance(memory.engines)
    yield from shown.metrics(memory.signs, now)


def _acceptance(engines: Mapping[str, EngineMemory]) -> Iterator[Metric]:
    by_position = GaugeMetricFamily(
        "dspark_acceptance_ratio",
        "Accepted per draft in the last full window of traffic",
        labels=["engine", "position"],
    )
    length = GaugeMetricFamily(
        "dspark_acceptance_length", "Tokens a step in that window", labels=["engine"]
    )
    for name, engine in engines.items():
        if not engine.windows:
            continue
        window = engine.windows[-1]
        for position, accepted in enumerate(window.accepted_at):
            by_position.add_metric([name, str(position)], accepted / window.drafts)
        length.add_metric([name], 1 + window.accepted / window.drafts)
    yield by_position
    yield length


def verbose(snapshot: Snapshot, now: float) -> str:
    """The verdict in a few lines, for `?verbose`: its first line is the whole in short."""
    memory, said = snapshot.memory, snapshot.verdict
    age = memory.evidence_age_s(now)
    lines = [
        said.line,
        f"since {now - memory.since:.0f} s, last turn {now - snapshot.at:.1f} s ago, "
        + ("nothing proved yet" if age is None else f"last proof {age:.0f} s ago"),
    ]
    lines += [f"{n.code}: {n.reason.meaning}; {n.reason.remedy}" for n in said.notes]
    if snapshot.cause is not None:
        # The line of the log itself is for /report: this surface is open.
        lines.append(f"cause: {snapshot.cause.id}; {snapshot.cause.remedy}")
    return "".join(f"{one_line(line)}\n" for line in lines)
