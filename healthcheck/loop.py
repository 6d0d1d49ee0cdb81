"""The loop: one turn asks, advances the verdict, publishes it, and starts what it wants next.

The loop runs in a thread of its own. Generations run in a second one, one at a time, so that
scraping goes on meanwhile. Without threads, `turn` can be driven by hand with any clock.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from healthcheck import exposition, listing, verdict
from healthcheck.answers import Answer, Failure
from healthcheck.cause import Cause, Log
from healthcheck.client import Cancel, Client
from healthcheck.explain.startup import Startup
from healthcheck.generate import Generator
from healthcheck.provenance import Provenance
from healthcheck.verdict import Generation, Memory, Outstanding, Policy, Reading, Verdict, Want
from healthcheck.words import one_line

# The loop's own liveness: a turn is three questions at most, each with a deadline.
TURN_LIMIT_S = 60.0


@dataclass(frozen=True)
class ProbeResult:
    """The last result of one question, for /metrics of this service."""

    success: bool
    duration_s: float
    at: float


@dataclass(frozen=True)
class Snapshot:
    """What the handlers read: one immutable value, replaced whole by every turn."""

    memory: Memory
    verdict: Verdict
    at: float
    turns: int
    probes: Mapping[str, ProbeResult] = field(default_factory=dict)
    generations: Mapping[str, int] = field(default_factory=dict)  # by step and outcome
    cause: Cause | None = None  # from the server's log
    startup: Startup | None = None  # likewise
    provenance: Mapping[str, Any] | None = None  # of the server's image


class Runner(Protocol):
    """Runs generations one at a time."""

    def start(self, want: Want, model: str, now: float) -> None:
        """Begin one; there is none outstanding."""

    def poll(self, now: float) -> tuple[Generation | None, Outstanding | None]:
        """The one that has finished, given once, and the one that runs now."""

    def stop(self) -> None:
        """Abort the one that runs, so that the server stops working on it."""


class ThreadRunner:
    """Runs each generation in a thread; calls `wake` when it has ended."""

    def __init__(self, generator: Generator, wake: Callable[[], None]) -> None:
        self._generator = generator
        self._wake = wake
        self._lock = threading.Lock()
        self._running: Outstanding | None = None
        self._cancel = Cancel()
        self._finished: Generation | None = None

    def start(self, want: Want, model: str, now: float) -> None:
        """Begin one in a thread of its own."""
        with self._lock:
            if self._running is not None:
                raise RuntimeError("a generation is running already")
            self._running = Outstanding(want.step, want.epoch, now, want.engine)
            self._cancel = Cancel()
        thread = threading.Thread(
            target=self._run, args=(want, model, self._cancel), name="generation", daemon=True
        )
        thread.start()

    def poll(self, now: float) -> tuple[Generation | None, Outstanding | None]:
        """What has finished and what runs, seen together: one of them cannot be missed."""
        del now
        with self._lock:
            finished, self._finished = self._finished, None
            return finished, self._running

    def stop(self) -> None:
        """Close its connection, upon which vLLM aborts the request."""
        with self._lock:
            self._cancel.abort()

    def _run(self, want: Want, model: str, cancel: Cancel) -> None:
        finished: Generation | None = None
        try:
            finished = self._generator.run(want, model, cancel)
        finally:
            with self._lock:
                self._running = None
                self._finished = finished
            self._wake()


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
    ) -> None:
        self._client = client
        self._policy = policy
        self._clock = clock
        self._wake = threading.Event()
        self._runner = runner or ThreadRunner(Generator(client, policy, clock), self._wake.set)
        self._say = say or to_stderr
        self._log = log
        self._provenance = provenance
        self._stopping = threading.Event()
        self._draining = threading.Event()
        self._thread: threading.Thread | None = None
        seed = random.randrange(1 << 30) if jitter_seed is None else jitter_seed
        now = clock()
        self._memory = verdict.begin(now, seed)
        self._probes: dict[str, ProbeResult] = {}
        self._counts: dict[str, int] = {}
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
        """The last turn's result. Reading it asks nothing and blocks on nothing."""
        return self._snapshot

    @property
    def turn_age_s(self) -> float:
        """Seconds since the last turn ended."""
        return self._clock() - self._snapshot.at

    @property
    def turns_on(self) -> bool:
        """The loop is alive: its last turn is not older than a turn can take."""
        return self.turn_age_s < TURN_LIMIT_S + self._policy.health.scrape_interval_s

    @property
    def draining(self) -> bool:
        """Drain was asked for."""
        return self._draining.is_set()

    def on_turn(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each turn, in the loop's thread."""
        self._listeners.append(listener)

    def drain(self) -> None:
        """Be unready from now on; a drain is not taken back."""
        self._draining.set()
        self._runner.stop()
        self._wake.set()

    def start(self) -> None:
        """Turn in a thread until `stop`."""
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and the generation that runs."""
        self._stopping.set()
        self._runner.stop()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=self._policy.health.probe_timeout_s * 3 + 1)

    def turn(self, now: float | None = None) -> Snapshot:
        """One turn: look, advance, publish, start what is wanted."""
        memory, policy = self._memory, self._policy
        reading = self._read(self._clock() if now is None else now)
        before = memory.state
        memory = verdict.advance(memory, reading, policy)
        if reading.generation is not None:
            key = f"{reading.generation.step.value}/{reading.generation.outcome.value}"
            self._counts[key] = self._counts.get(key, 0) + 1
        self._memory = memory
        self._turns += 1
        self._snapshot = self._take(reading.at)
        cause = self._snapshot.cause
        if memory.state is not before:
            self._say(one_line(f"health: {before} -> {self._snapshot.verdict.line}"))
        if cause is not None and cause != self._told:
            self._told = cause
            told = f"health: the server's log says {cause.headline}; {cause.remedy}"
            self._say(one_line(told))
        if memory.outstanding is not None and memory.outstanding.epoch != memory.epoch:
            self._runner.stop()  # it was asked of an engine that is gone
        want = verdict.wants(memory, reading.at, policy)
        if want is not None and memory.model is not None and not self._stopping.is_set():
            self._runner.start(want, memory.model, reading.at)
        for listener in self._listeners:
            listener()
        return self._snapshot

    def next_look_s(self) -> float:
        """Seconds until the next turn is due."""
        return verdict.next_look_s(self._memory, self._policy)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            self.turn()
            self._wake.wait(self.next_look_s())

    def _take(self, at: float) -> Snapshot:
        memory, log = self._memory, self._log
        return Snapshot(
            memory,
            verdict.verdict(memory, at),
            at,
            self._turns,
            dict(self._probes),
            dict(self._counts),
            log.cause(memory.state, at) if log else None,
            log.startup(at) if log else None,
            self._provenance.read() if self._provenance else None,
        )

    def _read(self, now: float) -> Reading:
        finished, outstanding = self._runner.poll(now)
        health = self._ask("health", "/health", now)
        up = isinstance(health, Answer) and health.status == 200
        gone = isinstance(health, Failure) and health.gone
        served = None
        if up and verdict.needs_listing(self._memory):
            served = listing.read(self._ask("models", "/v1/models", now))
        metrics = None if gone else exposition.read(self._ask("metrics", "/metrics", now))
        return Reading(
            now,
            health,
            served,
            metrics,
            finished,
            outstanding,
            self._draining.is_set(),
        )

    def _ask(self, name: str, path: str, now: float) -> Answer | Failure:
        answer = self._client.get(path, deadline_s=self._policy.health.probe_timeout_s)
        success = isinstance(answer, Answer) and answer.status == 200
        self._probes[name] = ProbeResult(success, answer.elapsed_s, now)
        return answer


def to_stderr(line: str) -> None:
    """One line to stderr, where container logs take it from."""
    print(line, file=sys.stderr, flush=True)
