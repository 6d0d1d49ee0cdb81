"""A state machine under test: readings with times of the test's own, and shorthands for them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from deploy.recipe import Health
from healthcheck.client.answers import Answer, Failure, FailureKind
from healthcheck.client.exposition import EngineSample, Exposition, Speculation
from healthcheck.client.listing import Listing
from healthcheck.judge import Completion, Finding, Outcome, Step
from healthcheck.reasons import Note
from healthcheck.signs.model import Signs
from healthcheck.verdict import (
    Generation,
    Memory,
    Outstanding,
    Policy,
    Reading,
    State,
    Want,
    advance,
    begin,
    next_look_s,
    wants,
)

OK = Answer(200)
DEAD = Answer(503)
REFUSED = Failure(FailureKind.REFUSED)
RESET = Failure(FailureKind.RESET)
TIMEOUT = Failure(FailureKind.TIMEOUT)
MODEL = "m"
LISTED = Listing((MODEL,), 16384)

GOOD = (Finding("real tokens", Outcome.GOOD),)
NAN = (Finding("logprobs", Outcome.BAD, "numerics.nan"),)
SILENT = (Finding("answer", Outcome.UNKNOWN, "generation.timeout"),)
DENIED = (Finding("answer", Outcome.UNKNOWN, "config.unauthorized"),)


def sample(
    tokens: float = 0.0,
    running: float = 0.0,
    waiting: float = 0.0,
    cache: float = 0.0,
    engine: str = "0",
    spec: Speculation | None = None,
) -> EngineSample:
    return EngineSample(engine, 0.0, tokens, running, waiting, cache, spec)


def metrics(*engines: EngineSample, start: float | None = 1.0) -> Exposition:
    return Exposition(start, engines or (sample(),))


MOST_READINGS = 20_000


@dataclass
class Machine:
    """A memory under test, with shorthands for what a reading holds."""

    policy: Policy = field(default_factory=lambda: Policy(Health(), MODEL))
    now: float = 0.0
    memory: Memory = field(default_factory=lambda: begin(0.0, 3))
    readings: int = 0
    made: int = 0  # generations
    answered: int = 0  # of them

    def see(
        self,
        health: Answer | Failure = OK,
        *,
        after: float = 5.0,
        metrics: Exposition | Failure | None = None,
        listing: Listing | Note | None = None,
        generation: Generation | None = None,
        outstanding: Outstanding | None = None,
        draining: bool = False,
        signs: Signs | None = None,
    ) -> State:
        self.now += after
        self.readings += 1
        assert self.readings < MOST_READINGS, "what this test waits for does not come"
        if generation is not None and generation.epoch == self.memory.epoch:
            self.answered += generation.wrote
        if isinstance(metrics, Exposition):
            metrics = self.counting(metrics)
        reading = Reading(
            self.now, health, listing, metrics, generation, outstanding, draining, signs
        )
        self.memory = advance(self.memory, reading, self.policy)
        return self.memory.state

    def counting(self, seen: Exposition) -> Exposition:
        """What is shown, with a token for every answer so far: a working server counts them."""
        engines = [
            replace(
                engine,
                generation_tokens=engine.generation_tokens + self.answered,
                first_tokens=None
                if engine.first_tokens is None
                else engine.first_tokens + self.answered,
            )
            for engine in seen.engines[:1]
        ]
        return replace(seen, engines=(*engines, *seen.engines[1:]))

    @property
    def pause(self) -> float:
        """Seconds to the next look."""
        return next_look_s(self.memory, self.policy)

    def wanted(self) -> Want | None:
        return wants(self.memory, self.now, self.policy)

    def generation(
        self,
        findings: tuple[Finding, ...] = GOOD,
        step: Step = Step.CANARY,
        tokens: tuple[int, ...] | None = None,
        lasting: float = 1.0,
    ) -> Generation:
        self.made += 1
        tokens = tokens or (self.made, 2, 3)
        completion = Completion("text", tokens, (-9.0,) * len(tokens))
        return Generation(
            step, self.memory.epoch, self.now + 5.0 - lasting, self.now + 5.0, findings, completion
        )

    def outstanding(self, since: float) -> Outstanding:
        return Outstanding(Step.CANARY, self.memory.epoch, since)

    def to_smoke(self) -> None:
        assert self.see(OK, listing=LISTED, metrics=metrics()) is State.SMOKE

    def to_ready(self) -> Machine:
        self.to_smoke()
        self.pass_gate()
        assert self.memory.state is State.READY
        return self

    def pass_gate(self, seen: Exposition | Failure | None = None) -> list[Want]:
        """Answer all that the gate asks for as a healthy server does; what it asked for."""
        wanted: list[Want] = []
        while self.memory.state is State.SMOKE:
            want = self.wanted()
            assert want is not None and want.step is self.memory.gate.step
            wanted.append(want)
            made = self.generation(step=want.step, tokens=(self.readings, 5, 6))
            self.see(OK, metrics=seen or metrics(), generation=made)
        return wanted

    @property
    def codes(self) -> list[str]:
        return [n.code for n in self.memory.notes]


def ready(**health: object) -> Machine:
    policy = Policy(replace(Health(), **health), MODEL)  # type: ignore[arg-type]
    return Machine(policy).to_ready()
