"""The state machine: readings in, verdict out.

Pure: `advance` makes the next memory of a memory and a reading, `wants` says which generation it
would like next, `verdict` what a memory amounts to. Time is passed in and is monotonic, in
seconds. Nothing here asks a server or reads a clock.

Hysteresis. Three bad verdicts in a row leave READY, two good ones, one of them a generation,
return to it. A time-out is no verdict at all: only a budget without any sign of progress is one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from deploy.recipe import Health
from healthcheck import acceptance
from healthcheck.answers import Answer, Failure, FailureKind
from healthcheck.exposition import EngineSample, Exposition, Speculation
from healthcheck.judge import CHANCE, Completion, Finding, Outcome, Step, differs, worst
from healthcheck.listing import Listing
from healthcheck.reasons import Note

GATE = (Step.WARM_UP, Step.PROBE, Step.SECOND_SEED, Step.LONG, Step.AT_ONCE)
SCORED = frozenset({Step.PROBE, Step.SECOND_SEED, Step.LONG, Step.AT_ONCE})
# A context too short for a prompt that is longer than the scored probe's.
SHORTEST_LONG = 512

# A look sooner than the scrape interval, where one more reading can settle the matter: three of
# them are over well inside the 10 s in which a killed engine has to show.
RECHECK_S = 1.0
# A gate that fails is tried again ever more slowly, up to this pause.
GATE_PAUSE_LIMIT_S = 60.0
CANARY_JITTER = 0.2
# Of several canaries together; there are thousands a day, so far under that of one probe.
CANARIES_ARGMAX_CHANCE = 1e-8
TIMELINE_KEPT = 64


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
    # Not started: the server that liveness restarts begins behind its startup probe again. With 200
    # here it counts as started at once and is killed while it loads (tests/deploy/test_k8s.py).
    State.STALLED: Surfaces(startup=False, ready=False, engine_live=False),
    State.DEAD: Surfaces(startup=False, ready=False, engine_live=False),
    State.DRAINING: Surfaces(startup=True, ready=False, engine_live=True),
}

NOTHING = Speculation()

# Nothing is there. A published port of a dead container accepts and closes: as good as refused.
GONE = frozenset({FailureKind.REFUSED, FailureKind.RESET})


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
        """The server said something, be it an error."""
        silent = {"generation.timeout", "generation.failed"}
        return not any(f.code in silent for f in self.findings)

    @property
    def timed_out(self) -> bool:
        """It was given up because its time was over."""
        return any(f.code == "generation.timeout" for f in self.findings)


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


@dataclass(frozen=True)
class Want:
    """The generation the machine asks for; `nonce` makes its prompt one of its kind.

    `prompt_tokens` 0: a short prompt. `requests` of the kind run at once. `engine` and `rank`: the
    engine it is meant for and its place among them; None leaves the choice to the server.
    """

    step: Step
    epoch: int
    nonce: str
    seed: int
    tokens: int
    timeout_s: float
    prompt_tokens: int = 0
    requests: int = 1
    engine: str | None = None
    rank: int | None = None

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
class EngineMemory:
    """What is known of one engine: its last sample, when it last made a step, its acceptance.

    `unmoved` counts the readings in a row in which it had work and made no step.
    """

    sample: EngineSample
    moved_at: float
    work_since: float | None = None
    unmoved: int = 0
    writes: bool = False  # the last reading saw new tokens of it
    asked_at: float = float("-inf")  # by a canary of its own
    window: Speculation = NOTHING
    windows: tuple[Speculation, ...] = ()
    low: Alarm = Alarm()
    collapsed: Alarm = Alarm()
    high: Alarm = Alarm()
    undrafted: float = 0.0  # tokens of decode steps since a draft was counted
    not_drafting: Alarm = Alarm()

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

    epoch: int = 0  # counts the engines met; a generation of an earlier one is ignored
    model: str | None = None
    max_model_len: int | None = None
    process_start: float | None = None
    engines: Mapping[str, EngineMemory] = field(default_factory=dict)
    sampled_at: float | None = None

    transport: Alarm = Alarm()
    slow: Alarm = Alarm()
    scrape: Alarm = Alarm()
    scrape_note: Note | None = None  # why the last scrape told nothing
    generation: Alarm = Alarm()
    blind: Alarm = Alarm()  # generations that told nothing
    gone_since: float | None = None
    said_dead: bool = False  # /health 503 in the present run of bad verdicts
    identity_doubt: bool = False  # it was gone; it may be another process now
    unanswered_since: float | None = None
    unanswered_by: str | None = None  # the engine that was asked, where one was chosen
    outstanding: Outstanding | None = None
    silent: int = 0  # readings in a row with a generation outstanding and no step anywhere
    over_stall: int = 0
    stale: int = 0

    gate: Gate = Gate()
    generations: int = 0
    argmax_chance: float = 1.0  # that sampling gave nothing but top tokens since it last did not
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
        return max(worst_engine, self._unanswered_for(at))

    def _unanswered_for(self, at: float) -> float:
        if not self.silent or not self.asked:
            return 0.0
        running = self.outstanding.started_at if self.outstanding and self.asks_this_engine else at
        asked = running if self.unanswered_since is None else min(running, self.unanswered_since)
        step = self.awaited_step_at
        return at - (asked if step is None else max(asked, step))

    @property
    def awaited_step_at(self) -> float | None:
        """The last step of the engine that was asked; without a choice, of any."""
        chosen = self.unanswered_by
        if chosen is None and self.outstanding is not None:
            chosen = self.outstanding.engine
        engine = self.engines.get(chosen) if chosen is not None else None
        return self.progress_at if engine is None else engine.moved_at

    @property
    def asks_this_engine(self) -> bool:
        """A generation runs, and the engine it was asked of is still there."""
        return self.outstanding is not None and self.outstanding.epoch == self.epoch

    @property
    def asked(self) -> bool:
        """A generation waits for its answer, or the last one has not been answered."""
        return self.unanswered_since is not None or self.asks_this_engine

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


def verdict(memory: Memory, now: float) -> Verdict:
    """The verdict that a memory amounts to."""
    return Verdict(
        memory.state,
        now - memory.since,
        memory.notes,
        SURFACES[memory.state],
        memory.evidence_age_s(now),
    )


def advance(memory: Memory, reading: Reading, policy: Policy) -> Memory:
    """The memory after one more reading."""
    seen, new_engine = _observe(memory, reading, policy)
    if reading.draining or memory.state is State.DRAINING:
        return _enter(seen, State.DRAINING, [Note("operator.drain")])
    if new_engine and memory.state is not State.LOADING:
        return _enter_smoke(seen, Note("engine.new"), policy.health)
    return _DECIDE[memory.state](seen, reading, policy)


def wants(memory: Memory, now: float, policy: Policy) -> Want | None:
    """The generation to start now, None for none. Never more than one at a time."""
    if memory.outstanding is not None or memory.transport.bad:
        return None
    health = policy.health
    match memory.state:
        case State.SMOKE:
            return _gate_want(memory, now, health)
        case State.STALLED:
            return _for_engine(_canary(memory, health), memory, memory.unanswered_by)
        case State.NOT_READY if not memory.recovery_generation and _rested(memory, now, health):
            return _for_engine(_recovery_want(memory, health), memory, _doubted(memory))
        case State.READY | State.DEGRADED:
            if _canary_is_due(memory, now, health):
                return _for_engine(_canary(memory, health), memory, _doubted(memory))
            idle = _idle_engine(memory, now, health)
            return None if idle is None else _for_engine(_canary(memory, health), memory, idle)
    return None


def next_look_s(memory: Memory, policy: Policy) -> float:
    """Seconds until the next reading is due."""
    interval = policy.health.scrape_interval_s
    soon = min(RECHECK_S, interval)
    unsettled = (
        memory.state is State.SMOKE
        or (memory.state is State.LOADING and memory.gone_since is not None)
        or (memory.transport.bad and not memory.transport.raised)
        or (memory.generation.bad and not memory.generation.raised)
        or (memory.state is State.NOT_READY and memory.recovery_good > 0)
    )
    if unsettled:
        return soon
    if memory.state not in (State.READY, State.DEGRADED):
        return interval
    return min(interval, max(soon, _next_budget_s(memory, policy.health)))


def _next_budget_s(memory: Memory, health: Health) -> float:
    """Seconds until the budget ends that would change the verdict or ask for a canary."""
    now = memory.at
    stuck = memory.stuck_for(now)
    if stuck:
        return health.readiness_budget_s - stuck
    age = memory.evidence_age_s(now)
    if age is None or memory.busy or memory.outstanding is not None:
        return health.scrape_interval_s
    return _canary_age(memory, health) - age


def needs_listing(memory: Memory) -> bool:
    """Whether the next reading should say what the server serves."""
    return memory.state in (State.LOADING, State.DEAD)


# --- observing: bookkeeping only -----------------------------------------------------------------


def _observe(memory: Memory, reading: Reading, policy: Policy) -> tuple[Memory, bool]:
    """The memory with the reading's facts in it, and whether another engine is behind the port."""
    seen = replace(memory, at=reading.at, outstanding=reading.outstanding)
    seen = _observe_transport(seen, reading, policy.health)
    new_engine = False
    if isinstance(reading.metrics, Exposition) and reading.metrics.engines:
        if _is_another(seen, reading.metrics):
            seen, new_engine = _forget_engine(seen), True
        seen = _observe_engines(seen, memory, reading, reading.metrics, policy.health)
    elif reading.metrics is not None:
        seen = replace(
            seen,
            scrape=seen.scrape.after(Outcome.BAD, *_hysteresis(policy.health)),
            scrape_note=_scrape_note(reading.metrics),
        )
        if seen.identity_doubt and seen.scrape.raised and seen.transport.good:
            seen, new_engine = _forget_engine(seen), True
    if reading.generation is not None and reading.generation.epoch == seen.epoch:
        seen = _observe_generation(seen, reading.generation, policy.health)
    return _observe_silence(seen, memory, reading, policy.health), new_engine


def _hysteresis(health: Health) -> tuple[int, int]:
    return health.bad_verdicts, health.good_verdicts


def _scrape_note(metrics: Exposition | Failure) -> Note:
    if isinstance(metrics, Failure):
        return Note("metrics.unavailable", metrics.detail)
    return Note("metrics.no_engine")


def _observe_transport(memory: Memory, reading: Reading, health: Health) -> Memory:
    outcome = _transport_outcome(reading.health)
    # Recovery has its own count, so one good answer ends the run of bad ones.
    transport = memory.transport.after(outcome, health.bad_verdicts, 1)
    answered = Outcome.BAD if outcome is Outcome.UNKNOWN else Outcome.GOOD
    gone = isinstance(reading.health, Failure) and outcome is Outcome.BAD
    gone_since = memory.gone_since
    if outcome is Outcome.GOOD:
        gone_since = None
    elif gone and gone_since is None:
        gone_since = reading.at
    said_dead = outcome is not Outcome.GOOD and (
        memory.said_dead or (isinstance(reading.health, Answer) and reading.health.status == 503)
    )
    return replace(
        memory,
        transport=transport,
        slow=memory.slow.after(answered, *_hysteresis(health)),
        gone_since=gone_since,
        said_dead=said_dead,
        identity_doubt=memory.identity_doubt or (gone and transport.raised),
    )


def _transport_outcome(answer: Answer | Failure) -> Outcome:
    if isinstance(answer, Failure):
        return Outcome.BAD if answer.kind in GONE else Outcome.UNKNOWN
    if answer.status == 200:
        return Outcome.GOOD
    return Outcome.BAD if answer.status == 503 else Outcome.UNKNOWN


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


def _forget_engine(memory: Memory) -> Memory:
    """Another engine: everything known of the last one is void, and its gate with it."""
    return replace(
        memory,
        epoch=memory.epoch + 1,
        engines={},
        process_start=None,
        identity_doubt=False,
        generation=Alarm(),
        blind=Alarm(),
        unanswered_since=None,
        unanswered_by=None,
        silent=0,
        over_stall=0,
        stale=0,
        gate=Gate(round=memory.gate.round + 1),
        argmax_chance=1.0,
        good_generation_at=None,
        progress_at=None,
        recovery_good=0,
        recovery_generation=False,
    )


def _observe_engines(
    memory: Memory, earlier: Memory, reading: Reading, seen: Exposition, health: Health
) -> Memory:
    # Our own generations are no traffic, unless traffic has been turned away because of its
    # acceptance: then they are all there is to recover by.
    own = reading.outstanding or reading.generation or earlier.outstanding
    judged_by_own = memory.state is State.NOT_READY and health.acceptance_effect == "not-ready"
    counts = judged_by_own or not own
    engines = {
        e.engine: _observe_engine(memory.engines.get(e.engine), e, reading.at, counts, health)
        for e in seen.engines
    }
    stepped = any(
        name in memory.engines and e.moved_at == reading.at for name, e in engines.items()
    )
    seen_now = replace(
        memory,
        engines=engines,
        process_start=seen.process_start,
        identity_doubt=False,
        sampled_at=reading.at,
        scrape=memory.scrape.after(Outcome.GOOD, *_hysteresis(health)),
        progress_at=reading.at if stepped else memory.progress_at,
    )
    answered = stepped and seen_now.awaited_step_at == reading.at
    return replace(seen_now, unanswered_since=None, unanswered_by=None) if answered else seen_now


def _observe_engine(
    known: EngineMemory | None, sample: EngineSample, at: float, counts: bool, health: Health
) -> EngineMemory:
    if known is None:
        return EngineMemory(sample, at, at if sample.has_work else None)
    moved = sample.trace != known.sample.trace
    if not sample.has_work:
        work_since = None
    else:
        work_since = at if known.work_since is None else known.work_since
    engine = replace(
        known,
        sample=sample,
        moved_at=at if moved else known.moved_at,
        work_since=work_since,
        unmoved=0 if moved or work_since is None else known.unmoved + 1,
        writes=sample.generation_tokens > known.sample.generation_tokens,
    )
    engine = _observe_drafting(engine, known.sample, health)
    return _observe_acceptance(engine, known.sample, counts, health)


def _observe_drafting(engine: EngineMemory, before: EngineSample, health: Health) -> EngineMemory:
    """A window of decoded tokens without one draft is bad; any draft is good. The tokens of
    prefills do not count: a client that asks for one token makes no draft."""
    now = engine.sample
    if now.speculation is None or before.speculation is None:
        return engine
    needed = _hysteresis(health)
    if now.speculation.drafts > before.speculation.drafts:
        drafting = engine.not_drafting.after(Outcome.GOOD, *needed)
        return replace(engine, undrafted=0.0, not_drafting=drafting)
    if now.decoded_tokens is None or before.decoded_tokens is None:
        return engine
    undrafted = engine.undrafted + max(now.decoded_tokens - before.decoded_tokens, 0.0)
    if undrafted < health.acceptance_window_drafts:
        return replace(engine, undrafted=undrafted)
    drafting = engine.not_drafting.after(Outcome.BAD, *needed)
    return replace(engine, undrafted=0.0, not_drafting=drafting)


def _observe_acceptance(
    engine: EngineMemory, before: EngineSample, counts: bool, health: Health
) -> EngineMemory:
    if not counts or engine.sample.speculation is None or before.speculation is None:
        return engine
    window = engine.window.plus(engine.sample.speculation.since(before.speculation))
    if window.drafts < health.acceptance_window_drafts:
        return replace(engine, window=window)
    windows = (*engine.windows, window)[-acceptance.WINDOWS_KEPT :]
    needed = _hysteresis(health)
    return replace(
        engine,
        window=NOTHING,
        windows=windows,
        low=engine.low.after(acceptance.low(window, health.acceptance_floor), *needed),
        collapsed=engine.collapsed.after(acceptance.collapsed(window), *needed),
        high=engine.high.after(acceptance.high(windows, health.acceptance_ceiling), *needed),
    )


def _observe_sampling(memory: Memory, generation: Generation) -> tuple[float, Generation]:
    """The chance that sampling gave only top tokens so far, and the generation, whose sampling is
    bad when that has become incredible."""
    sampling = next((f for f in generation.findings if f.check == "sampling"), None)
    chance = sampling.evidence.get(CHANCE) if sampling is not None else None
    if sampling is None or not isinstance(chance, float):
        return memory.argmax_chance, generation
    if sampling.outcome is Outcome.GOOD:
        return 1.0, generation
    together = memory.argmax_chance * chance
    if together >= CANARIES_ARGMAX_CHANCE:
        return together, generation
    bad = replace(
        sampling, outcome=Outcome.BAD, evidence={**sampling.evidence, "chance_together": together}
    )
    rest = tuple(f for f in generation.findings if f is not sampling)
    return together, replace(generation, findings=(*rest, bad))


def _observe_generation(memory: Memory, generation: Generation, health: Health) -> Memory:
    argmax_chance, generation = _observe_sampling(memory, generation)
    outcome = generation.outcome
    seen = replace(
        memory,
        argmax_chance=argmax_chance,
        generations=memory.generations + 1,
        last_generation=generation,
        generation=memory.generation.after(outcome, health.bad_verdicts, 1),
        blind=memory.blind.after(
            Outcome.BAD if outcome is Outcome.UNKNOWN else Outcome.GOOD, health.bad_verdicts, 1
        ),
    )
    if generation.timed_out:
        since = memory.unanswered_since
        seen = replace(
            seen,
            unanswered_since=generation.started_at if since is None else since,
            unanswered_by=generation.engine,
        )
    elif memory.unanswered_by in (None, generation.engine):
        seen = replace(seen, unanswered_since=None, unanswered_by=None)
    if generation.engine is not None and generation.engine in seen.engines:
        asked = replace(seen.engines[generation.engine], asked_at=memory.at)
        seen = replace(seen, engines={**seen.engines, generation.engine: asked})
    if outcome is Outcome.GOOD and generation.step is not Step.WARM_UP:
        seen = replace(seen, good_generation_at=generation.ended_at)
    if memory.state is State.SMOKE:
        seen = replace(seen, gate=_gate_after(seen.gate, generation, memory.at, health))
    return seen


def _gate_after(gate: Gate, generation: Generation, at: float, health: Health) -> Gate:
    """The gate after a generation of its own; what is bad starts the round again."""
    if generation.step is not gate.step:
        return gate
    step, findings = generation.step, generation.findings
    gate = replace(gate, took={**gate.took, step: generation.ended_at - generation.started_at})
    if step is Step.WARM_UP:
        # Its result is ignored: it is there to compile.
        if generation.answered:
            return replace(gate, index=gate.index + 1)
        return replace(gate, not_before=at + health.scrape_interval_s)
    if step is Step.SECOND_SEED and gate.first and generation.completion:
        findings = (*findings, differs(gate.first, generation.completion))
    gate = replace(gate, findings={**gate.findings, step: findings})
    outcome = worst(findings)
    if outcome is Outcome.GOOD:
        first = generation.completion if step is Step.PROBE else gate.first
        done = gate.index + 1 >= len(gate.steps)
        return replace(
            gate, index=gate.index + 1, first=first, failures=0 if done else gate.failures
        )
    failed = outcome is Outcome.BAD
    failures = gate.failures + failed
    pause = min(health.scrape_interval_s * max(failures, 1), GATE_PAUSE_LIMIT_S)
    return replace(
        gate,
        index=gate.steps.index(Step.PROBE),
        round=gate.round + 1,
        failures=failures,
        not_before=at + pause,
        bad=tuple(f for f in findings if f.outcome is Outcome.BAD) if failed else gate.bad,
    )


def _is_hidden(reading: Reading) -> bool:
    """The server answers /health and does not show its scheduler."""
    answers = _transport_outcome(reading.health) is Outcome.GOOD
    return answers and not isinstance(reading.metrics, Exposition)


def _observe_silence(memory: Memory, earlier: Memory, reading: Reading, health: Health) -> Memory:
    """Counts the readings in which work waited and nothing moved."""
    moved = memory.awaited_step_at == reading.at
    seen = replace(memory, silent=earlier.silent + 1 if memory.asked and not moved else 0)
    # A server that answers /health but hides its scheduler may be busy: restarting it is a guess.
    hidden = _is_hidden(reading)
    stalled = seen.stuck_for(reading.at) >= health.stall_budget_s and not hidden
    age = seen.evidence_age_s(reading.at)
    stale = age is not None and age >= health.evidence_max_age_s
    return replace(
        seen,
        over_stall=earlier.over_stall + 1 if stalled else 0,
        stale=earlier.stale + 1 if stale else 0,
    )


# --- deciding: one function a state ---------------------------------------------------------------


def _enter(memory: Memory, state: State, notes: Sequence[Note]) -> Memory:
    if state is memory.state:
        return replace(memory, notes=tuple(notes))
    code = notes[0].code if notes else ""
    timeline = (*memory.timeline, Transition(memory.at, state, code))[-TIMELINE_KEPT:]
    return replace(
        memory,
        state=state,
        since=memory.at,
        notes=tuple(notes),
        timeline=timeline,
        recovery_good=0,
        recovery_generation=False,
    )


def _start_gate(memory: Memory, note: Note, health: Health) -> Memory:
    """SMOKE with a gate of its own; the counters that are known stay known."""
    fresh = replace(
        _forget_engine(memory), engines=memory.engines, process_start=memory.process_start
    )
    return _enter_smoke(fresh, note, health)


def _enter_smoke(memory: Memory, note: Note, health: Health) -> Memory:
    gate = replace(memory.gate, steps=_gate_steps(memory.max_model_len, health))
    return _enter(replace(memory, gate=gate), State.SMOKE, [note])


def _loading(memory: Memory, reading: Reading, policy: Policy) -> Memory:
    note, served = _serves(reading, policy)
    if served is not None:
        listed = replace(memory, model=served, max_model_len=_longest(reading))
        return _start_gate(listed, Note("gate.running", "the server is up"), policy.health)
    notes = [note]
    waited = reading.at - memory.since
    if waited >= policy.health.start_budget_s:
        notes.insert(0, Note("start.over_budget", f"{waited:.0f} s"))
    return _enter(memory, State.LOADING, notes)


def _serves(reading: Reading, policy: Policy) -> tuple[Note, str | None]:
    """The model to ask for if the server is up and lists it, else the reason why not."""
    if _transport_outcome(reading.health) is not Outcome.GOOD:
        return Note("start.waiting", _health_note(reading.health).code), None
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
    if memory.said_dead and memory.transport.raised:
        return _enter(memory, State.DEAD, [Note("server.engine_dead")])
    if memory.gone_since is not None:
        return _enter(memory, State.LOADING, [_health_note(reading.health)])
    if memory.gate.passed:
        return _settle(memory, policy)
    if memory.over_stall >= policy.health.stall_confirmations:
        return _enter(memory, State.STALLED, [_stall_note(memory)])
    return _enter(memory, State.SMOKE, _gate_notes(memory, policy.health))


def _stall_note(memory: Memory) -> Note:
    return Note("progress.stalled", f"{memory.stuck_for(memory.at):.0f} s")


def _gate_notes(memory: Memory, health: Health) -> list[Note]:
    gate = memory.gate
    notes = [_finding_note(f) for f in gate.bad]
    if gate.failures:
        notes.append(Note("gate.failed", f"{gate.failures} in a row"))
    last = memory.last_generation
    if last is not None and last.epoch == memory.epoch and last.outcome is Outcome.UNKNOWN:
        notes += [_finding_note(f) for f in last.findings if f.outcome is Outcome.UNKNOWN]
    if memory.stuck_for(memory.at) >= health.readiness_budget_s:
        notes.append(Note("gate.no_progress", f"{memory.stuck_for(memory.at):.0f} s"))
    return notes or [Note("gate.running", gate.step.value if gate.step else "")]


def _serving(memory: Memory, reading: Reading, policy: Policy) -> Memory:
    """READY, DEGRADED and NOT_READY."""
    health = policy.health
    dead = _death(memory, reading, health)
    if dead is not None:
        return _enter(memory, State.DEAD, [dead])
    if memory.over_stall >= health.stall_confirmations:
        return _enter(memory, State.STALLED, [_stall_note(memory)])
    down = _down(memory, reading, health)
    if down:
        held = replace(memory, recovery_good=0, recovery_generation=False)
        return _enter(held, State.NOT_READY, down)
    if memory.state is State.NOT_READY:
        return _recover(memory, reading, policy)
    return _settle(memory, policy)


def _death(memory: Memory, reading: Reading, health: Health) -> Note | None:
    """The reason to call the engine dead: confirmed 503, or refused for long."""
    gone_for = 0.0 if memory.gone_since is None else reading.at - memory.gone_since
    if not memory.transport.raised or not (memory.said_dead or gone_for >= health.dead_after_s):
        return None
    code = "server.engine_dead" if memory.said_dead else _health_note(reading.health).code
    return Note(code, f"for {gone_for:.0f} s" if gone_for else "")


def _down(memory: Memory, reading: Reading, health: Health) -> list[Note]:
    """The reasons not to send work now."""
    notes = []
    if memory.transport.raised:
        notes.append(_health_note(reading.health))
    if memory.generation.raised and memory.last_generation is not None:
        notes += [
            _finding_note(f) for f in memory.last_generation.findings if f.outcome is Outcome.BAD
        ] or [Note("generation.failed")]
    stuck = memory.stuck_for(reading.at)
    confirmed = max([memory.silent, *[e.unmoved for e in memory.engines.values()]])
    # With /metrics hidden, work that was seen last may go on: only the age of evidence tells then.
    hidden = memory.busy and _is_hidden(reading)
    if stuck >= health.readiness_budget_s and confirmed >= health.bad_verdicts and not hidden:
        notes.append(Note("progress.none", f"{stuck:.0f} s{_which(memory, reading.at)}"))
    if memory.stale >= health.bad_verdicts:
        notes.append(Note("evidence.stale", f"{memory.evidence_age_s(reading.at):.0f} s"))
    if health.acceptance_effect == "not-ready":
        notes += _acceptance_notes(memory)
    return notes


def _which(memory: Memory, at: float) -> str:
    """The engines that are stuck, where there are several."""
    stuck = [name for name, e in memory.engines.items() if e.stuck_for(at) > 0]
    return f", engine {' '.join(stuck)}" if stuck and len(memory.engines) > 1 else ""


def _recover(memory: Memory, reading: Reading, policy: Policy) -> Memory:
    bad_now = memory.transport.bad or memory.generation.bad
    good_now = _transport_outcome(reading.health) is Outcome.GOOD
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
    if enough and memory.recovery_generation and not memory.identity_doubt:
        return _settle(memory, policy)
    causes = [n for n in memory.notes if n.code != "recovery.pending"]
    return _enter(memory, State.NOT_READY, [Note("recovery.pending"), *causes])


def _settle(memory: Memory, policy: Policy) -> Memory:
    """READY, or DEGRADED with its reasons."""
    notes = []
    if memory.slow.raised:
        notes.append(Note("server.slow"))
    if memory.scrape.raised and memory.scrape_note is not None:
        notes.append(memory.scrape_note)
    if memory.blind.raised and memory.last_generation is not None:
        notes += [
            _finding_note(f)
            for f in memory.last_generation.findings
            if f.outcome is Outcome.UNKNOWN
        ]
    if policy.health.acceptance_effect != "not-ready":
        notes += _acceptance_notes(memory)
    return _enter(memory, State.DEGRADED if notes else State.READY, notes)


def _acceptance_notes(memory: Memory) -> list[Note]:
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


def _health_note(answer: Answer | Failure) -> Note:
    """What /health says when it does not say 200."""
    if isinstance(answer, Failure):
        code = {
            FailureKind.REFUSED: "server.refused",
            FailureKind.RESET: "server.reset",
            FailureKind.TIMEOUT: "server.timeout",
        }.get(answer.kind, "server.unknown")
        return Note(code, answer.detail)
    if answer.status == 503:
        return Note("server.engine_dead")
    code = "server.redirect" if 300 <= answer.status < 400 else "server.unexpected_status"
    return Note(code, f"/health answers {answer.status}")


def _finding_note(finding: Finding) -> Note:
    detail = ", ".join(f"{k} {v}" for k, v in finding.evidence.items())
    return Note(finding.code or "generation.failed", f"{finding.check}: {detail}"[:200])


# --- wanting --------------------------------------------------------------------------------------


def _gate_want(memory: Memory, now: float, health: Health) -> Want | None:
    gate = memory.gate
    if gate.step is None or now < gate.not_before:
        return None
    step = gate.step
    # Both seeds of a round share a prompt: that they differ is what the second one shows.
    shares = step in (Step.PROBE, Step.SECOND_SEED)
    want = Want(
        step,
        memory.epoch,
        f"{memory.epoch}-{gate.round}" + ("" if shares else f"-{step.value}"),
        seed=2 * gate.round + (2 if step is Step.SECOND_SEED else 1),
        tokens=health.gate_tokens,
        timeout_s=_gate_timeout_s(step, health),
        requests=health.gate_requests if step is Step.AT_ONCE else 1,
    )
    return _long(want, memory.max_model_len, health) if step is Step.LONG else want


def _long(want: Want, longest: int | None, health: Health) -> Want:
    """The long probe in what the context leaves: a quarter of it at most for the answer."""
    if longest is None:
        return replace(want, tokens=health.long_tokens, prompt_tokens=health.long_prompt_tokens)
    tokens = min(health.long_tokens, longest // 4)
    return replace(
        want, tokens=tokens, prompt_tokens=min(health.long_prompt_tokens, longest - tokens)
    )


def gate_limit_s(health: Health) -> float:
    """The longest that one round of the gate can take: every step's time-out."""
    steps = _gate_steps(None, health)
    return sum(_gate_timeout_s(step, health) for step in steps)


def _gate_timeout_s(step: Step, health: Health) -> float:
    # Long prompts and batches have kernels of their own to compile.
    compiles = step in (Step.WARM_UP, Step.LONG, Step.AT_ONCE)
    return health.warmup_timeout_s if compiles else health.generation_timeout_s


def _gate_steps(longest: int | None, health: Health) -> tuple[Step, ...]:
    """The steps that the budgets ask for and the context has room for."""
    left_out = set()
    if not health.long_prompt_tokens or (longest is not None and longest < SHORTEST_LONG):
        left_out.add(Step.LONG)
    if health.gate_requests < 2:
        left_out.add(Step.AT_ONCE)
    return tuple(step for step in GATE if step not in left_out)


def _recovery_want(memory: Memory, health: Health) -> Want:
    """A short generation; behind queued work it may take as long as a gate's."""
    timeout = health.generation_timeout_s if memory.busy else health.canary_timeout_s
    by_acceptance = health.acceptance_effect == "not-ready" and _acceptance_notes(memory)
    tokens = health.gate_tokens if by_acceptance else health.canary_tokens
    return _want(memory, Step.RECOVERY, tokens, timeout)


def _want(memory: Memory, step: Step, tokens: int, timeout_s: float) -> Want:
    nonce = f"{memory.epoch}-{step.value}-{memory.generations}"
    return Want(step, memory.epoch, nonce, memory.generations, tokens, timeout_s)


def _canary(memory: Memory, health: Health) -> Want:
    """A few tokens; beside others' work they may take as long as a gate's."""
    timeout = health.generation_timeout_s if memory.busy else health.canary_timeout_s
    return _want(memory, Step.CANARY, health.canary_tokens, timeout)


def _doubted(memory: Memory) -> str | None:
    """The engine that is silent, wrote what was bad, or is stuck; None if it is none of several."""
    last = memory.last_generation
    if memory.unanswered_by is not None:
        return memory.unanswered_by
    if memory.generation.bad and last is not None and last.engine is not None:
        return last.engine
    stuck = {n: e.stuck_for(memory.at) for n, e in memory.engines.items() if e.unmoved}
    return max(stuck, key=stuck.__getitem__, default=None)


def _rested(memory: Memory, now: float, health: Health) -> bool:
    """The last generation ended an interval ago: what is down is asked at the pace of looks."""
    last = memory.last_generation
    return last is None or now - last.ended_at >= health.scrape_interval_s


def _for_engine(want: Want, memory: Memory, engine: str | None) -> Want:
    rank = _ranks(memory).get(engine) if engine is not None else None
    return want if rank is None else replace(want, engine=engine, rank=rank)


def _ranks(memory: Memory) -> dict[str, int]:
    """Each engine's place among the server's, which is what the header X-data-parallel-rank takes;
    empty where there is no choice."""
    numbers = sorted((n for n in memory.engines if n.isascii() and n.isdigit()), key=int)
    if len(numbers) < 2 or len(numbers) < len(memory.engines):
        return {}
    return {name: rank for rank, name in enumerate(numbers)}


def _is_visible(memory: Memory, now: float, health: Health) -> bool:
    """The scheduler was seen so lately that what it showed may still hold."""
    return memory.sampled_at is not None and now - memory.sampled_at < health.canary_after_s


def _idle_engine(memory: Memory, now: float, health: Health) -> str | None:
    """The engine among several that has been idle and unasked for longest, if for too long.

    That another one works proves nothing about it. Asked again no sooner than after the same time:
    where the server chooses by itself, the answer may be another engine's.
    """
    if not _is_visible(memory, now, health):
        return None
    ages = {
        name: now - max(memory.engines[name].moved_at, memory.engines[name].asked_at)
        for name in _ranks(memory)
        if memory.engines[name].work_since is None
    }
    oldest = max(ages, key=ages.__getitem__, default=None)
    wanted = oldest is not None and ages[oldest] >= _canary_age(memory, health)
    return oldest if wanted else None


def _unread_for_long(memory: Memory, now: float, health: Health) -> bool:
    """No text has been judged for long, tokens flow, and nothing waits: a canary is answered soon,
    and under traffic without end it is the only one to read what is written."""
    last = memory.last_generation
    flows = any(e.writes for e in memory.engines.values())
    waiting = any(e.sample.waiting for e in memory.engines.values())
    old = last is not None and now - last.ended_at >= health.evidence_max_age_s
    return old and flows and not waiting


def _canary_age(memory: Memory, health: Health) -> float:
    """The age of evidence at which a canary is sent."""
    # Deterministic for a memory, different for each canary and each service.
    draw = random.Random(memory.jitter_seed * 1_000_003 + memory.generations).uniform(-1, 1)
    return health.canary_after_s * (1 + CANARY_JITTER * draw)


def _canary_is_due(memory: Memory, now: float, health: Health) -> bool:
    if memory.generation.bad:
        return True  # one more settles whether it was chance
    asked = memory.engines.get(memory.unanswered_by) if memory.unanswered_by else None
    if asked is not None and asked.work_since is None:
        return True  # the others' work is no answer
    if memory.busy and _is_visible(memory, now, health):
        # Steps prove progress, and the stuck clock runs on them; what is written they do not.
        return _unread_for_long(memory, now, health)
    if memory.unanswered_since is not None:
        return True  # the question stands until it is answered
    age = memory.evidence_age_s(now)
    return age is None or age >= _canary_age(memory, health)
