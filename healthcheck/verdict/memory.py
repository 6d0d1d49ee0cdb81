"""What is remembered between readings, and what a state is worth to each probe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from deploy.recipe import Health
from healthcheck.client.answers import Answer, Failure
from healthcheck.client.exposition import EngineSample, Exposition, Speculation
from healthcheck.client.listing import Listing
from healthcheck.judge import Completion, Finding, Outcome, Step, worst
from healthcheck.judge.prompts import DEPTH
from healthcheck.reasons import Note
from healthcheck.signs.model import Ended, Signs

GATE = (
    *(Step.WARM_UP, Step.PROBE, Step.SECOND_SEED, Step.TOP_P, Step.QUESTION, Step.LONG),
    Step.AT_ONCE,
    Step.EVERY_ENGINE,  # where there are several to choose from
)
SCORED = frozenset(GATE[1:]) | {Step.IDLE}
# Late, cut off, too long or no completion: nothing that proves a thing.
UNREAD = frozenset({"generation.timeout", "generation.failed", "answer.malformed"})
TIMELINE_KEPT = 64
# The record of a server without a choice among engines.
ANY = ""
# An engine is out of service when a third of its last answers was bad, be they in a row or not.
ANSWERS_PER_BAD = 3
# Each time it is out again it owes twice as many good ones, up to so many doublings.
MOST_DOUBLINGS = 4
# While work waits or nothing is written, a text is read after so many times evidence_max_age_s.
UNREAD_TIMES = 4
# Of own texts that many are kept, to know one that comes again.
TEXTS_KEPT = 256


class State(StrEnum):
    """What the server is, as far as we know."""

    LOADING = "LOADING"
    SMOKE = "SMOKE"
    READY = "READY"
    DEGRADED = "DEGRADED"
    NOT_READY = "NOT_READY"
    STALLED = "STALLED"
    DEAD = "DEAD"
    DRAINING = "DRAINING"


@dataclass(frozen=True)
class Surfaces:
    """Which of the probes a state passes: /startupz, /readyz, /livez/engine."""

    startup: bool
    ready: bool
    engine_live: bool


SURFACES: Mapping[State, Surfaces] = {
    State.LOADING: Surfaces(startup=False, ready=False, engine_live=True),
    State.SMOKE: Surfaces(startup=False, ready=False, engine_live=True),
    State.READY: Surfaces(startup=True, ready=True, engine_live=True),
    State.DEGRADED: Surfaces(startup=True, ready=True, engine_live=True),
    State.NOT_READY: Surfaces(startup=True, ready=False, engine_live=True),
    # Not started, but for a server that has passed a gate and is still there: see `surfaces`.
    State.STALLED: Surfaces(startup=False, ready=False, engine_live=False),
    State.DEAD: Surfaces(startup=False, ready=False, engine_live=False),
    State.DRAINING: Surfaces(startup=True, ready=False, engine_live=True),
}
NOTHING = Speculation()


@dataclass(frozen=True)
class Policy:
    """The budgets, and what the server is expected to be.

    `model` None: whatever the server lists first. `speculates` False: no draft is expected.
    """

    health: Health = field(default_factory=Health)
    model: str | None = None
    speculates: bool = True


@dataclass(frozen=True)
class Generation:
    """A finished generation: what it was for, when it ran, what was found in its answer."""

    step: Step
    epoch: int
    started_at: float
    ended_at: float
    findings: tuple[Finding, ...]
    completion: Completion | None = field(default=None, repr=False)
    engine: str | None = None

    @property
    def outcome(self) -> Outcome:
        """The worst of the findings."""
        return worst(self.findings)

    @property
    def answered(self) -> bool:
        """The server said something that can be read, be it an error."""
        unread = any(f.check == "answer" and f.code in UNREAD for f in self.findings)
        return not unread and not self.ours

    @property
    def timed_out(self) -> bool:
        """It was given up because its time was over."""
        return any(f.code == "generation.timeout" for f in self.findings)

    @property
    def ours(self) -> bool:
        """It failed by an error of this service, which says nothing about the server."""
        return any(f.code == "service.error" for f in self.findings)

    @property
    def wrote(self) -> bool:
        """A text came, good or bad."""
        return any(f.check == "real tokens" for f in self.findings)


@dataclass(frozen=True)
class Outstanding:
    """The generation that is running now."""

    step: Step
    epoch: int
    started_at: float
    engine: str | None = None


@dataclass(frozen=True)
class Reading:
    """What one turn of the loop saw. None: not asked in this turn."""

    at: float
    health: Answer | Failure
    listing: Listing | Note | None = None
    metrics: Exposition | Failure | None = None
    generation: Generation | None = None  # finished since the last reading
    outstanding: Outstanding | None = None
    draining: bool = False
    signs: Signs | None = None  # of the server's processes, None where they are not seen

    @property
    def transport(self) -> Outcome:
        """What the answer of /health says of the server."""
        if isinstance(self.health, Failure):
            return Outcome.BAD if self.health.gone else Outcome.UNKNOWN
        if self.health.status == 200:
            return Outcome.GOOD
        return Outcome.BAD if self.health.status == 503 else Outcome.UNKNOWN

    @property
    def health_note(self) -> Note:
        """What /health says when it does not say 200."""
        if isinstance(self.health, Failure):
            return Note(self.health.code, self.health.detail)
        status = self.health.status
        if status == 503:
            return Note("server.engine_dead")
        code = "server.redirect" if 300 <= status < 400 else "server.unexpected_status"
        return Note(code, f"/health answers {status}")

    @property
    def hides_scheduler(self) -> bool:
        """The server answers /health and does not show what its engines do."""
        return self.transport is Outcome.GOOD and not isinstance(self.metrics, Exposition)


@dataclass(frozen=True)
class Want:
    """The generation the machine asks for; `nonce` makes its prompt one of its kind.

    `prompt_tokens` 0: a short prompt; `depth` is where a long one holds what is asked for, as a
    share. `requests` of the kind run at once. `engine` and `rank`: the engine it is meant for and
    its place among them; None leaves the choice to the server. `ranks`: the same of several
    engines, each of which gets one of the requests.
    """

    step: Step
    epoch: int
    nonce: str
    seed: int
    tokens: int
    timeout_s: float
    prompt_tokens: int = 0
    depth: float = DEPTH
    requests: int = 1
    engine: str | None = None
    rank: int | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)

    @property
    def scored(self) -> bool:
        """Judged in full; a canary's few tokens are not."""
        return self.step in SCORED


@dataclass(frozen=True)
class Alarm:
    """Raised by enough bad verdicts in a row, cleared by enough good ones; unknown is neither."""

    raised: bool = False
    bad: int = 0
    good: int = 0

    def after(self, outcome: Outcome, bad_needed: int, good_needed: int) -> Alarm:
        """The alarm with one more verdict."""
        if outcome is Outcome.UNKNOWN:
            return self
        if outcome is Outcome.BAD:
            return Alarm(self.raised or self.bad + 1 >= bad_needed, self.bad + 1, 0)
        return Alarm(self.raised and self.good + 1 < good_needed, 0, self.good + 1)


@dataclass(frozen=True)
class Record:
    """What one engine answered to our generations; times are monotonic seconds.

    Its text is out of service (`raised`) when a third of the last answers was bad, and again in it
    after as many good ones in a row as were looked at; what relapses owes ever more.
    """

    judged: tuple[bool, ...] = ()  # the last answers, True for good
    good: int = 0  # in a row
    raised: bool = False
    falls: int = 0  # how often it was raised
    bad: tuple[Finding, ...] = ()  # what the last bad one had
    read_at: float = float("-inf")  # a text was judged
    scored_at: float = float("-inf")  # and judged in full
    asked_at: float = float("-inf")  # a generation ended, whatever it told
    unanswered: int = 0  # in a row, while nothing waited
    unanswered_since: float | None = None  # no answer and no step since
    silent: int = 0  # readings in a row with an open question and no step
    argmax_chance: float = 1.0  # that sampling gave nothing but top tokens since it last did not

    def after(self, outcome: Outcome, bad: tuple[Finding, ...], health: Health) -> Record:
        """The record with one more answer; one that told nothing changes nothing."""
        if outcome is Outcome.UNKNOWN:
            return self
        looked_at = ANSWERS_PER_BAD * health.bad_verdicts
        is_good = outcome is Outcome.GOOD
        judged = (*self.judged, is_good)[-looked_at:]
        good = self.good + 1 if is_good else 0
        kept = replace(self, judged=judged, good=good, bad=self.bad if is_good else bad)
        if self.raised:
            owed = looked_at * 2 ** min(self.falls - 1, MOST_DOUBLINGS)
            return replace(kept, raised=good < owed)
        if judged.count(False) < health.bad_verdicts:
            return kept
        return replace(kept, raised=True, falls=self.falls + 1)

    @property
    def doubted(self) -> bool:
        """One more answer is wanted at once: a late one was bad, or none came."""
        return not all(self.judged) or self.unanswered > 0 or self.unanswered_since is not None


@dataclass(frozen=True)
class EngineMemory:
    """What is known of one engine: its last sample, when it last made a step, its acceptance.

    `unmoved` counts the readings in a row in which it had work and made no step, `absent` those
    that did not show it.
    """

    sample: EngineSample
    moved_at: float
    work_since: float | None = None
    unmoved: int = 0
    absent: int = 0
    # Last seen with an empty queue, at a step or idle, while a generation of ours was out.
    free_at: float = float("-inf")
    writes: bool = False  # the last reading saw new tokens of it
    window: Speculation = NOTHING
    windows: tuple[Speculation, ...] = ()
    low: Alarm = Alarm()
    collapsed: Alarm = Alarm()
    high: Alarm = Alarm()
    undrafted: float = 0.0  # tokens of decode steps since a draft was counted
    not_drafting: Alarm = Alarm()

    @property
    def drafts_badly(self) -> bool:
        """One of the alarms over its acceptance stands."""
        return any(a.raised for a in (self.low, self.collapsed, self.high, self.not_drafting))

    def stuck_for(self, at: float) -> float:
        """Seconds since it should have made a step."""
        if self.work_since is None or not self.unmoved:
            return 0.0
        return at - max(self.work_since, self.moved_at)


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

    transport: Alarm = Alarm()
    unclear: Alarm = Alarm()  # /health told nothing
    unclear_note: Note | None = None
    scrape: Alarm = Alarm()
    scrape_note: Note | None = None  # why the last scrape told nothing
    blind: Alarm = Alarm()  # generations that told nothing
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
    in_state_s: float
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
    return Verdict(
        memory.state,
        now - memory.since,
        memory.notes,
        surfaces(memory),
        memory.evidence_age_s(now),
    )
