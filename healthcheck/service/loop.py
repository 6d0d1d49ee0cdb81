"""The loop: one turn asks, advances the verdict, publishes it, and starts what it wants next.

The loop runs in a thread of its own. Generations run in a second one, one at a time, so that
scraping goes on meanwhile. Without threads, `turn` can be driven by hand with any clock.

Whatever goes wrong in a turn is caught at the thread's edge: it is counted, said and shown as the
reason service.error, and the next turn comes after a pause that grows. A loop whose turns fail for
longer than TURN_LIMIT_S ends, and the process with it: whatever runs it starts it again.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from healthcheck import verdict
from healthcheck.client import Client, exposition, listing
from healthcheck.client.answers import Answer, Failure
from healthcheck.client.cancel import Cancel
from healthcheck.flights.newest import Flights
from healthcheck.judge import Outcome, Step
from healthcheck.reasons import Note
from healthcheck.service.cause import Cause, Log
from healthcheck.service.generate import Generator
from healthcheck.service.provenance import Provenance
from healthcheck.service.runner import Runner
from healthcheck.service.snapshot import ProbeResult, Snapshot
from healthcheck.service.voice import to_stderr
from healthcheck.signs.model import Signs
from healthcheck.verdict import RECHECK_S, SURFACES, Generation, Memory, Policy, Reading, State
from healthcheck.words import fault, one_line

# The loop's own liveness: a turn is three questions at most, each with a deadline.
TURN_LIMIT_S = 60.0
HEALTH_BYTES = 64 * 1024  # vLLM's answer is empty
# After errors of our own: a second, doubled with each one in a row.
LONGEST_PAUSE_S = 60.0


class Loop:
    """Keeps the verdict on one server. `say` gets one line for every change of state."""

    def __init__(
        self,
        client: Client,
        policy: Policy,
        *,
        clock: Callable[[], float] = time.monotonic,
        runner: Runner | None = None,
        say: Callable[[str], None] | None = None,
        jitter_seed: int | None = None,
        log: Log | None = None,
        provenance: Provenance | None = None,
        signs: Callable[[], Signs | None] | None = None,
        flights: Flights | None = None,
    ) -> None:
        self._client = client
        self._policy = policy
        self._clock = clock
        self._wake = threading.Event()
        self._runner = runner or Runner(Generator(client, policy, clock), self._wake.set)
        self._say = say or to_stderr
        self._log = log
        self._provenance = provenance
        self._signs = signs
        self._flights = flights
        self._stopping = threading.Event()
        self._draining = False
        self._over = threading.Event()
        self._asking = Cancel()
        self._thread: threading.Thread | None = None
        seed = random.randrange(1 << 30) if jitter_seed is None else jitter_seed
        now = clock()
        self._memory = verdict.begin(now, seed)
        self._probes: dict[str, ProbeResult] = {}
        self._counts: dict[str, int] = {}
        self._errors: dict[str, int] = {}
        self._failing_since: float | None = None
        self._failed = 0  # turns in a row
        self._broken = 0  # generations in a row that failed by an error of our own
        self._rests_until = now  # no generation before
        self._turns = 0
        self._told: Cause | None = None
        self._listeners: list[Callable[[], None]] = []
        self._snapshot = self._take(now)

    @property
    def clock(self) -> Callable[[], float]:
        """The clock of every time in a snapshot."""
        return self._clock

    @property
    def snapshot(self) -> Snapshot:
        """The last turn's result. Reading it asks nothing and blocks on nothing. A drain that was
        asked for holds at once, whatever the turn under way waits for."""
        seen = self._snapshot
        if not self.draining or seen.verdict.state is State.DRAINING:
            return seen
        notes = (Note("operator.drain"),)
        drained = replace(
            seen.verdict, state=State.DRAINING, notes=notes, surfaces=SURFACES[State.DRAINING]
        )
        return replace(seen, verdict=drained)

    @property
    def turn_age_s(self) -> float:
        """Seconds since the last turn ended."""
        return self._clock() - self._snapshot.at

    @property
    def turns_on(self) -> bool:
        """The loop is alive: its last turn is not older than a turn can take."""
        return self.turn_age_s < TURN_LIMIT_S + self._policy.health.scrape_interval_s

    @property
    def over(self) -> bool:
        """The loop has ended and was not asked to."""
        return self._over.is_set() and not self._stopping.is_set()

    @property
    def draining(self) -> bool:
        """Drain was asked for."""
        return self._draining

    def on_turn(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each turn, in the loop's thread."""
        self._listeners.append(listener)

    def drain(self) -> None:
        """Be unready from now on; a drain is not taken back. For one thread and its signals."""
        if self._draining:
            return  # nor may a signal's handler wait for what it has interrupted
        self._draining = True
        self._runner.stop()
        self._wake.set()

    def start(self) -> None:
        """Turn in a thread until `stop`. Raises RuntimeError if there can be none."""
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, its question, and the generation that runs."""
        self._stopping.set()
        self._asking.abort()
        self._runner.end()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=self._policy.health.probe_timeout_s)

    def turn(self, now: float | None = None) -> Snapshot:
        """One turn: look, advance, publish, start what is wanted."""
        before, policy = self._memory, self._policy
        reading = self._read(self._clock() if now is None else now)
        if self._stopping.is_set():
            return self._snapshot  # its questions were cut off
        memory = verdict.advance(before, reading, policy)
        if reading.generation is not None:
            self._took(reading.generation, reading.at)
        self._memory = memory
        self._turns += 1
        self._snapshot = self._take(reading.at)
        self._tell(before, self._snapshot)
        if memory.outstanding is not None and memory.outstanding.epoch != memory.epoch:
            self._runner.stop()  # it was asked of an engine that is gone
        want = verdict.wants(memory, reading.at, policy)
        if want is not None and memory.model is not None and reading.at >= self._rests_until:
            self._runner.start(want, memory.model, reading.at)
        for listener in self._listeners:
            listener()
        return self._snapshot

    def next_look_s(self) -> float:
        """Seconds until the next turn is due."""
        return verdict.next_look_s(self._memory, self._policy)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._wake.clear()
                pause = self._attempt()
                if pause is None:
                    return
                (self._stopping if self._failed else self._wake).wait(pause)
        finally:
            self._over.set()

    def _attempt(self) -> float | None:
        """One turn, whatever comes up in it: the seconds to the next one, None for none."""
        began = self._clock()
        try:
            self.turn()
            pause = self.next_look_s()
        except Exception as e:
            self._failed += 1
            since = self._failing_since = (
                began if self._failing_since is None else self._failing_since
            )
            note = self._trouble("turn", f"{fault(e)}, {self._failed} in a row")
            shown = self._snapshot
            notes = (*(n for n in shown.verdict.notes if n.code != note.code), note)
            said = replace(shown.verdict, notes=notes)
            self._snapshot = replace(shown, verdict=said, errors=dict(self._errors))
            if self._clock() - since < TURN_LIMIT_S:
                return _pause_s(self._failed)
            self._say(f"health: no turn held for {TURN_LIMIT_S:.0f} s: the service ends")
            return None
        self._failed, self._failing_since = 0, None
        return pause

    def _trouble(self, where: str, what: str) -> Note:
        """Count and say an error of our own; the note that shows it."""
        self._errors[where] = self._errors.get(where, 0) + 1
        note = Note("service.error", one_line(f"{where}: {what}"))
        self._say(f"health: {note}")
        return note

    def _took(self, generation: Generation, at: float) -> None:
        """Count a finished generation; after one that was not good the next one waits a little,
        after one that failed by an error of our own ever longer."""
        key = f"{generation.step.value}/{generation.outcome.value}"
        self._counts[key] = self._counts.get(key, 0) + 1
        if generation.ours:
            self._broken += 1
            self._rests_until = at + _pause_s(self._broken)
            errors = [str(f.evidence.get("error", "")) for f in generation.findings]
            self._trouble("generation", errors[0])
            return
        self._broken = 0
        if generation.step is Step.QUESTION and generation.outcome is Outcome.UNKNOWN:
            told = generation.findings[0]
            seen = ", ".join(f"{k} {v}" for k, v in told.evidence.items())
            self._say(
                one_line(f"health: the gate goes on without its question: {told.code} ({seen})")
            )
        if generation.outcome is not Outcome.GOOD:
            self._rests_until = at + min(RECHECK_S, self._policy.health.scrape_interval_s)

    def _tell(self, before: Memory, snapshot: Snapshot) -> None:
        """Say what has changed: the state, what a start waits for, the cause in the log."""
        memory, cause = snapshot.memory, snapshot.cause
        if memory.state is not before.state:
            self._say(one_line(f"health: {before.state} -> {snapshot.verdict.line}"))
        elif memory.state is State.LOADING and _codes(memory) != _codes(before):
            self._say(one_line(f"health: {snapshot.verdict.line}"))
        if cause is not None and cause != self._told:
            self._told = cause
            told = f"health: the server's log says {cause.headline}; {cause.remedy}"
            self._say(one_line(told))

    def _take(self, at: float) -> Snapshot:
        memory, log = self._memory, self._log
        said = verdict.verdict(memory, at)
        cause = startup = provenance = flight = None
        try:
            cause = log.cause(memory.state, at) if log else None
            startup = log.startup(at) if log else None
            provenance = self._provenance.read(at) if self._provenance else None
            flight = self._flights.last(at) if self._flights else None
        except Exception as e:  # what it tells is an extra: the verdict does without
            said = replace(said, notes=(*said.notes, self._trouble("log", fault(e))))
        return Snapshot(
            memory,
            said,
            at,
            self._turns,
            dict(self._probes),
            dict(self._counts),
            dict(self._errors),
            cause,
            startup,
            provenance,
            flight,
        )

    def _read(self, now: float) -> Reading:
        finished, outstanding = self._runner.poll(now)
        health = self._ask("health", "/health", now, HEALTH_BYTES)
        up = isinstance(health, Answer) and health.status == 200
        gone = isinstance(health, Failure) and health.gone
        served = None
        if up and verdict.needs_listing(self._memory):
            models = self._ask("models", "/v1/models", now, listing.LIMIT_BYTES)
            served = listing.read(models, self._policy.model)
        metrics = None
        if not gone:
            scraped = self._ask("metrics", "/metrics", now, exposition.LIMIT_BYTES)
            metrics = exposition.read(scraped)
        return Reading(
            now,
            health,
            served,
            metrics,
            finished,
            outstanding,
            self._draining,
            self._signs() if self._signs else None,  # last, so that they are fresh
        )

    def _ask(self, name: str, path: str, now: float, limit_bytes: int) -> Answer | Failure:
        self._asking = Cancel()
        if self._stopping.is_set():
            self._asking.abort()
        timeout_s = self._policy.health.probe_timeout_s
        answer = self._client.get(
            path, deadline_s=timeout_s, limit_bytes=limit_bytes, cancel=self._asking
        )
        success = isinstance(answer, Answer) and answer.status == 200
        self._probes[name] = ProbeResult(success, answer.elapsed_s, now)
        return answer


def _pause_s(errors: int) -> float:
    """The pause after so many errors in a row."""
    return float(min(2.0 ** min(errors - 1, 30), LONGEST_PAUSE_S))


def _codes(memory: Memory) -> list[str]:
    return [note.code for note in memory.notes]
