"""What a turn brings and what it asks for: readings, generations, and the policy of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from deploy.recipe import Health
from healthcheck.client.answers import Answer, Failure
from healthcheck.client.exposition import Exposition
from healthcheck.client.listing import Listing
from healthcheck.judge import Completion, Finding, Outcome, Step, worst
from healthcheck.judge.prompts import DEPTH
from healthcheck.reasons import Note
from healthcheck.signs.model import Signs

GATE = (
    *(Step.WARM_UP, Step.PROBE, Step.SECOND_SEED, Step.TOP_P, Step.QUESTION, Step.LONG),
    Step.AT_ONCE,
    Step.EVERY_ENGINE,  # where there are several to choose from
)
SCORED = frozenset(GATE[1:]) | {Step.IDLE}
# Late, cut off, too long or no completion: nothing that proves a thing.
UNREAD = frozenset({"generation.timeout", "generation.failed", "answer.malformed"})


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
