"""A reading's facts folded into the memory: bookkeeping only, no state is changed here."""

from __future__ import annotations

import math
from dataclasses import replace

from deploy.recipe import Health
from healthcheck.client.answers import Answer, Failure, FailureKind
from healthcheck.client.exposition import Exposition
from healthcheck.judge import Outcome
from healthcheck.reasons import Note
from healthcheck.signs.model import Signs
from healthcheck.verdict import vitals
from healthcheck.verdict.answers import answered_by_steps, observe_generation, observe_silence
from healthcheck.verdict.engines import observe_engines
from healthcheck.verdict.memory import Gate, Memory
from healthcheck.verdict.readings import Policy, Reading
from healthcheck.verdict.records import Alarm, hysteresis
from healthcheck.verdict.states import State


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
        seen = observe_engines(seen, memory, reading, reading.metrics, policy.health)
    elif reading.metrics is not None:
        seen = replace(
            seen,
            scrape=seen.scrape.after(Outcome.BAD, *hysteresis(policy.health)),
            scrape_note=_scrape_note(reading.metrics),
        )
        if seen.identity_doubt and seen.scrape.raised and seen.transport.good:
            seen, new_engine = forget_engine(seen), True
    seen = answered_by_steps(seen, reading.at)
    if reading.generation is not None and reading.generation.epoch == seen.epoch:
        seen = observe_generation(seen, reading.generation, policy.health)
    return observe_silence(seen, memory, reading, policy.health), new_engine


def _born(memory: Memory, reading: Reading, signs: Signs) -> float:
    """When the server that is judged was started. One that was up is that until it is given up as
    DEAD, though its successor is there by then: what it died of is to be told."""
    down = memory.state in (State.LOADING, State.DEAD) or reading.transport is Outcome.GOOD
    return signs.started if down or math.isinf(memory.born_at) else memory.born_at


def longest_turn_s(health: Health) -> float:
    """The longest time between two readings of a service that runs: three questions and some."""
    return health.scrape_interval_s + 4 * health.probe_timeout_s


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
        unclear=memory.unclear.after(answered, *hysteresis(health)),
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
