"""What the vital signs of the server's processes say; nothing where they are not seen.

A process that is stopped or gone says so by itself. That all of an engine sleep does not: they do
so when idle, too, and a worker that waits for its card sleeps in the driver. So a deadlock needs a
question of ours that is out, an engine that sleeps since before it or for longer, a scheduler that
was read just now and has made no step, no compiler, and cards that are seen at rest. Where there
are cards and their load cannot be read, nobody knows, and the budgets decide as without signs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from deploy.recipe import Health
from healthcheck.judge import Outcome
from healthcheck.reasons import Note
from healthcheck.signs.model import ENGINE_CORE, INTERVAL_S, Process, Signs
from healthcheck.verdict.memory import Memory
from healthcheck.verdict.readings import Reading

# Older signs say nothing about now: their writer is gone, or kept from its work.
SEEN_S = 5 * INTERVAL_S
# A question is out for so long before a deadlock is told: two looks at the processes lie within.
UNANSWERED_S = INTERVAL_S
UNANSWERED_READINGS = 2
ASLEEP_S = 3 * INTERVAL_S
PROMPT_S = 1.0
# Ends that are told beside a server that is down.
LATELY_S = 120.0
WORKER = "Worker"
NAMES_TOLD = 8


def seen(reading: Reading, longest_turn_s: float) -> Signs | None:
    """The reading's signs, if they are of about its time: they are read at the end of a turn."""
    signs = reading.signs
    if signs is None or not -longest_turn_s <= reading.at - signs.at <= SEEN_S:
        return None
    return signs


def stopped(memory: Memory) -> list[Note]:
    """Processes that somebody has stopped, seen so at two looks."""
    signs = memory.signs
    if signs is None:
        return []
    return [
        Note("process.stopped", f"{p.name}, pid {p.pid}, {signs.at - p.since:.0f} s")
        for p in signs.processes
        if p.stopped and p.since < signs.at
    ]


def died(memory: Memory) -> list[Note]:
    """Processes that have ended since the server last proved that it works, and not by themselves:
    what scales down leaves with exit code 0."""
    proved = memory.good_generation_at
    return [] if proved is None else _ends(memory, proved)


def lately_ended(memory: Memory) -> list[Note]:
    """The same of a server that is down and has nothing to prove."""
    return _ends(memory, memory.at - LATELY_S)


def _ends(memory: Memory, after: float) -> list[Note]:
    return [
        Note("process.died", f"{e.name}, pid {e.pid}: {e.how}")
        for e in memory.ended
        if e.at > max(after, memory.born_at) and e.exit_code != 0
    ]


def deadlocks(memory: Memory, reading: Reading) -> list[Note]:
    """Engines that owe us an answer, make no step and sleep."""
    return [_deadlock(memory, key) for key in _deadlocked(memory, reading)]


def deadlocked_for(memory: Memory, reading: Reading) -> float:
    """Seconds for which an engine has been seen asleep beside our question; 0.0 if none is."""
    return max(_deadlocked(memory, reading).values(), default=0.0)


def _deadlocked(memory: Memory, reading: Reading) -> Mapping[str, float]:
    # An API process that is late may hold our question.
    prompt = reading.health.elapsed_s <= PROMPT_S
    if memory.sampled_at != memory.at or reading.transport is not Outcome.GOOD or not prompt:
        return {}
    stuck = {key: _asleep_for(memory, key) for key in memory.records}
    return {key: seconds for key, seconds in stuck.items() if seconds is not None}


def _asleep_for(memory: Memory, key: str) -> float | None:
    """For how long an engine has slept beside our question, once that settles that it will not
    wake; None before."""
    asked, signs = memory.asked_since(key), memory.signs
    if asked is None or signs is None or memory.record(key).silent < UNANSWERED_READINGS:
        return None
    step = memory.step_of(key)
    since = asked if step is None else max(asked, step)
    sleeps = asleep_since(memory, key)
    if sleeps is None:
        return None
    # Who woke for the question and sleeps again may wait for something that will come.
    patience = UNANSWERED_S if sleeps <= since else ASLEEP_S
    seconds = signs.at - max(sleeps, since)
    return seconds if seconds >= patience else None


def _deadlock(memory: Memory, key: str) -> Note:
    sleeps, signs = asleep_since(memory, key), memory.signs
    assert sleeps is not None and signs is not None
    names = _told(p.name for p in signs.engine(key))
    return Note("progress.deadlock", f"asleep for {signs.at - sleeps:.0f} s: {names}")


def asleep_since(memory: Memory, key: str) -> float | None:
    """Since when nothing has worked for an engine: none of its processes, nothing beside them, no
    card; None if something has, or that is not known."""
    signs = memory.signs
    mine = signs.engine(key) if signs else ()
    if signs is None or signs.cards is None or signs.compilers or not mine:
        return None
    whole = any(p.name.startswith(ENGINE_CORE) for p in mine)
    since = [p.still_since for p in (*mine, *(p for p in signs.processes if not p.pid))]
    known = [s for s in since if s is not None]
    # Cards that were never at work are others', or show nothing, as to a virtual machine.
    worked = [c.busy_at for c in signs.cards if c.busy_at is not None]
    seen = bool(worked) or not signs.cards
    if not whole or len(known) < len(since) or not seen:
        return None
    if any(c.busy_percent is None for c in signs.cards):
        return None
    return max(*known, *worked)


def alive(memory: Memory, key: str) -> bool:
    """The engine's processes are seen, and each runs or sleeps as it should."""
    mine = memory.signs.engine(key) if memory.signs else ()
    return bool(mine) and all(p.state in "RS" for p in mine)


def suspicious(memory: Memory) -> bool:
    """One more look may settle the matter: a process just stopped, or work for who sleeps."""
    signs = memory.signs
    if signs is None:
        return False
    return any(p.stopped for p in signs.processes) or any(suspect(memory, k) for k in memory.keys)


def suspect(memory: Memory, key: str) -> bool:
    """An engine sleeps while it has work, by counters that are known to be its own."""
    engines = [memory.engines[key]] if key in memory.engines else [*memory.engines.values()]
    work = memory.asked_since(key) is not None or any(e.work_since is not None for e in engines)
    trusted = memory.uncounted_since is None
    sleeps, signs = asleep_since(memory, key), memory.signs
    asleep = sleeps is not None and signs is not None and sleeps < signs.at
    return work and trusted and asleep


def doing(memory: Memory, names: Sequence[str] = ()) -> str:
    """What the processes of the engines of these names do, of none or of unknown ones those of all,
    in a few words behind a comma; empty where it is not seen."""
    signs = memory.signs
    if signs is None:
        return ""
    mine = [p for name in names for p in signs.engine(name)]
    mine = mine or [p for p in signs.processes if p.of_engine]
    if signs.compilers:
        began = min(c.since for c in signs.compilers)
        return f", compiling: {_told(c.name for c in signs.compilers)}, {signs.at - began:.0f} s"
    halted = [p.name for p in mine if p.stopped]
    if halted:
        return f", stopped: {_told(halted)}"
    waits = [p.name for p in mine if p.state == "D"]
    if waits:
        return f", waiting for a disk: {_told(waits)}"
    works = [p.name for p in mine if p.still_since is None]
    if works:
        return f", at work: {_told(works)}"
    if not mine:
        return ""
    busy = [c.name for c in signs.cards or () if c.busy_at == signs.at]
    return ", asleep" + (f", cards at work: {_told(busy)}" if busy else "")


def ranks_asleep(memory: Memory, names: Sequence[str]) -> list[Note]:
    """Ranks of an engine of these names, of none those of any, that sleep while others of it work:
    they wait for different things."""
    signs = memory.signs
    engines = [signs.engine(name) for name in names or [*memory.engines]] if signs else []
    notes = []
    for mine in engines:
        ranks = [p for p in mine if _is_rank(p)]
        asleep = [p.name for p in ranks if p.still_since is not None]
        works = [p.name for p in ranks if p.still_since is None and p.state == "R"]
        if asleep and works:
            told = f"{_told(asleep)}; at work: {_told(works)}"
            notes.append(Note("progress.rank_asleep", told))
    return notes


def _is_rank(process: Process) -> bool:
    return process.name.startswith(WORKER) and "_TP" in process.name


def card_errors(memory: Memory) -> list[Note]:
    """Cards with errors since the server's start that ECC could not correct."""
    cards = (memory.signs.cards if memory.signs else None) or ()
    return [Note("gpu.uncorrected", f"{c.name}: {c.uncorrected}") for c in cards if c.uncorrected]


def turns_away(health: Health) -> bool:
    """Whether such a card takes its server out of rotation."""
    return health.gpu_error_effect == "not-ready"


def _told(names: Iterable[str]) -> str:
    each = [*names]
    more = f" and {len(each) - NAMES_TOLD} more" if len(each) > NAMES_TOLD else ""
    return ", ".join(each[:NAMES_TOLD]) + more
