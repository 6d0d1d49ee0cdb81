"""What is remembered between readings, and what a state is worth to each probe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from healthcheck.judge import Completion, Finding, Step
from healthcheck.reasons import Note
from healthcheck.signs.model import Ended, Signs
from healthcheck.verdict.readings import GATE, Generation, Outstanding
from healthcheck.verdict.records import ANY, QUIET, Alarm, EngineMemory, Record
from healthcheck.verdict.states import SURFACES, State, Surfaces

TIMELINE_KEPT = 64

# While work waits or nothing is written, a text is read after so many times evidence_max_age_s.
UNREAD_TIMES = 4
# Of own texts that many are kept, to know one that comes again.
TEXTS_KEPT = 256


@dataclass(frozen=True)
class Gate:
    """The start gate: the step it is at, the rounds tried and failed, the last findings."""

    index: int = 0
    round: int = 0
    failures: int = 0  # in a row
    not_before: float = float("-inf")
    first: Completion | None = field(default=None, repr=False)
    findings: Mapping[Step, tuple[Finding, ...]] = field(default_factory=dict)
    bad: tuple[Finding, ...] = ()  # of the last failed round
    steps: tuple[Step, ...] = GATE
    rungs: tuple[int, ...] = ()  # lengths of the long prompts in tokens, from short to long
    rung: int = 0  # the one that is asked next
    misses: int = 0  # of its needle, or of the question
    took: Mapping[Step, float] = field(default_factory=dict)  # seconds, of the last run of a step

    @property
    def passed(self) -> bool:
        """Every step held."""
        return self.index >= len(self.steps)

    @property
    def step(self) -> Step | None:
        """The step to run next."""
        return None if self.passed else self.steps[self.index]


@dataclass(frozen=True)
class Transition:
    """One change of state, for the timeline."""

    at: float
    state: State
    code: str


@dataclass(frozen=True)
class Memory:
    """All that is remembered between readings."""

    started_at: float
    state: State = State.LOADING
    since: float = 0.0
    at: float = 0.0
    notes: tuple[Note, ...] = (Note("start.waiting"),)
    timeline: tuple[Transition, ...] = ()
    jitter_seed: int = 0
    woke_at: float = float("-inf")  # our own last pause ended: no clock runs from before

    epoch: int = 0  # counts the engines met; a generation of an earlier one is ignored
    model: str | None = None
    max_model_len: int | None = None
    process_start: float | None = None
    passed: bool = False  # a gate, by this very server: its port was never closed since
    engines: Mapping[str, EngineMemory] = field(default_factory=dict)
    sampled_at: float | None = None
    signs: Signs | None = None  # the last reading's, if they were of its time
    ended: tuple[Ended, ...] = ()  # of the last signs that were seen: their writer may be gone too
    born_at: float = float("-inf")  # start of the server that is judged: ends before are others'

    transport: Alarm = QUIET
    unclear: Alarm = QUIET  # /health told nothing
    unclear_note: Note | None = None
    scrape: Alarm = QUIET
    scrape_note: Note | None = None  # why the last scrape told nothing
    blind: Alarm = QUIET  # generations that told nothing
    gone_since: float | None = None
    said_dead: bool = False  # /health 503 in the present run of bad verdicts
    identity_doubt: bool = False  # it was gone; it may be another process now
    outstanding: Outstanding | None = None
    over_stall: int = 0
    stale: int = 0

    gate: Gate = Gate()
    renewals: int = 0  # new engines since one was READY
    generations: int = 0
    records: Mapping[str, Record] = field(default_factory=dict)  # by engine, or ANY
    texts: tuple[tuple[int, ...] | tuple[str, ...], ...] = ()  # of the last canaries, as tokens
    counted_at: float | None = None  # /metrics last showed new tokens
    uncounted_since: float | None = None  # an answer came whose tokens it does not show
    last_generation: Generation | None = None
    good_generation_at: float | None = None
    progress_at: float | None = None
    recovery_good: int = 0
    recovery_generation: bool = False

    @property
    def proven_at(self) -> float | None:
        """When the server last proved that it works: a good generation, or a step."""
        times = [t for t in (self.good_generation_at, self.progress_at) if t is not None]
        return max(times, default=None)

    def evidence_age_s(self, at: float) -> float | None:
        """Seconds since that proof, None if there was none."""
        return None if self.proven_at is None else at - self.proven_at

    def stuck_for(self, at: float) -> float:
        """Seconds for which work has been outstanding and no step was made; the worst engine."""
        # An engine is known to be stuck up to its last sample, no further.
        seen = at if self.sampled_at is None else min(at, self.sampled_at)
        worst_engine = max((e.stuck_for(seen) for e in self.engines.values()), default=0.0)
        unanswered = max((self._unanswered_for(key, at) for key in self.records), default=0.0)
        return max(worst_engine, unanswered)

    def _unanswered_for(self, key: str, at: float) -> float:
        asked, step = self.asked_since(key), self.step_of(key)
        if asked is None or not self.records[key].silent:
            return 0.0
        return at - (asked if step is None else max(asked, step))

    def asked_since(self, key: str) -> float | None:
        """Since when an answer has been due to us, None if none is."""
        since = self.record(key).unanswered_since
        running = self.outstanding
        if running is None or running.epoch != self.epoch or (running.engine or ANY) != key:
            return since
        began = max(running.started_at, self.woke_at)
        return began if since is None else min(began, since)

    def step_of(self, key: str) -> float | None:
        """The last step of an engine; without a choice, of any."""
        return self.engines[key].moved_at if key in self.engines else self.progress_at

    def record(self, key: str) -> Record:
        """What that engine answered so far."""
        return self.records.get(key) or Record()

    @property
    def ranks(self) -> Mapping[str, int]:
        """Each engine's place among the server's, which is what the header X-data-parallel-rank
        takes; empty where there is no choice."""
        numbers = sorted((n for n in self.engines if n.isascii() and n.isdigit()), key=int)
        if len(numbers) < 2 or len(numbers) < len(self.engines):
            return {}
        return {name: rank for rank, name in enumerate(numbers)}

    @property
    def keys(self) -> tuple[str, ...]:
        """The records of those that can be asked: engines by name, or ANY."""
        return tuple(n for n in self.ranks if not self.engines[n].absent) or (ANY,)

    @property
    def busy(self) -> bool:
        """The last scrape saw work."""
        return any(e.work_since is not None for e in self.engines.values())


@dataclass(frozen=True)
class Verdict:
    """What the service says now. Ages in seconds; evidence_age_s None: nothing proved yet."""

    state: State
    notes: tuple[Note, ...]
    surfaces: Surfaces
    evidence_age_s: float | None

    @property
    def line(self) -> str:
        """State and reasons on one line."""
        return " ".join([self.state.value, *[str(note) for note in self.notes]])


def begin(at: float, jitter_seed: int = 0) -> Memory:
    """The memory of a service that has just started and seen nothing."""
    first = Transition(at, State.LOADING, "start.waiting")
    return Memory(started_at=at, since=at, at=at, jitter_seed=jitter_seed, timeline=(first,))


def surfaces(memory: Memory) -> Surfaces:
    """What a memory is worth to each probe.

    STALLED and DEAD fail /startupz, for the server that liveness restarts begins behind its startup
    probe again: with 200 it would count as started at once and be killed while it loads. One that
    passed its gate and is still there passes: kubelet asks about it anew when kubelet itself was
    restarted, and acts on liveness only after that (tests/deploy/test_k8s.py).
    """
    passes = SURFACES[memory.state]
    down = memory.state in (State.STALLED, State.DEAD)
    return replace(passes, startup=memory.passed) if down else passes


def verdict(memory: Memory, now: float) -> Verdict:
    """The verdict that a memory amounts to."""
    return Verdict(memory.state, memory.notes, surfaces(memory), memory.evidence_age_s(now))
