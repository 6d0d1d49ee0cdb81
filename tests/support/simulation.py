"""Drives the real loop against a scripted server with a clock of its own.

Questions are real HTTP, but for looks at a server that answers or refuses them plainly: in hours of
those there is nothing to see that the first does not show. Time is not real: `run` lets the loop
turn when it would be due and sets the clock forward by what it would have slept, so that an hour
takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from deploy.recipe import Health
from healthcheck.client import Client, Secret
from healthcheck.client.answers import Answer, Failure, FailureKind
from healthcheck.judge import judge
from healthcheck.service.generate import Generator
from healthcheck.service.loop import Loop
from healthcheck.signs.model import Signs
from healthcheck.verdict import Generation, Outstanding, Policy, State, Want
from tests.support.scripted_server import MODEL, ScriptedServer


@dataclass
class SimulatedRunner:
    """A runner whose generations hang, in simulated time, while the server is `hung`."""

    server: ScriptedServer
    generator: Generator
    running: tuple[Want, str, float] | None = None
    aborted: int = 0

    def start(self, want: Want, model: str, now: float) -> None:
        """Begin one; its answer is fetched at the next turn that finds the server not hung."""
        assert self.running is None, "single flight"
        self.running = (want, model, now)

    def poll(self, now: float) -> tuple[Generation | None, Outstanding | None]:
        """The finished one, or the one that still hangs."""
        if self.running is None:
            return None, None
        want, model, began = self.running
        late = self.hangs(want) or self.server.takes_s > want.timeout_s
        if now - began < (want.timeout_s if late else self.server.takes_s):
            return None, Outstanding(want.step, want.epoch, began, want.engine)
        self.running = None
        if late:
            failure = Failure(FailureKind.TIMEOUT, "simulated")
            findings, _ = judge(failure, asked_tokens=want.tokens)
            silent = Generation(want.step, want.epoch, began, now, findings, engine=want.engine)
            return silent, None
        made = self.generator.run(want, model)
        return replace(made, started_at=began, ended_at=now), None

    def hangs(self, want: Want) -> bool:
        """The whole server hangs, or the engine that was asked."""
        return self.server.hung or want.engine in self.server.hung_engines

    def stop(self) -> None:
        """Forget the one that runs."""
        self.aborted += self.running is not None
        self.running = None

    def end(self) -> None:
        """The same."""
        self.stop()


class SimulatedClient(Client):
    """A client that gets no answer in no time while the server is `blocked`. What a look at /health
    or /metrics gets is asked of the server itself where HTTP would change nothing of it, and a look
    that was refused is refused again while nothing listens."""

    def __init__(self, server: ScriptedServer, url: str, key: Secret | None) -> None:
        super().__init__(url, key=key)
        self._server = server
        self._refused: dict[str, Answer | Failure] = {}

    def get(self, path: str, **options: Any) -> Answer | Failure:
        """The answer of a server that gives one."""
        if self._server.blocked:
            return Failure(FailureKind.TIMEOUT, "simulated", options["deadline_s"])
        if self.base_url != self._server.url or path not in ("/health", "/metrics"):
            return super().get(path, **options)
        if not self._server.listens:
            if path not in self._refused:
                self._refused[path] = super().get(path, **options)
            return self._refused[path]
        self._refused.clear()
        plain = None if self._server.redirect else self._server.answer("GET", path, None, "")
        if plain is None or plain[0] != 200:
            return super().get(path, **options)
        return Answer(*plain[:2])


@dataclass
class Simulation:
    """A loop over a scripted server, at a simulated time in seconds."""

    server: ScriptedServer
    health: Health = field(default_factory=Health)
    model: str | None = MODEL
    speculates: bool = True
    now: float = 1000.0
    host: str = "127.0.0.1"
    key: Secret | None = None
    signs: Callable[[float], Signs | None] = lambda _: None

    def __post_init__(self) -> None:
        policy = Policy(self.health, self.model, self.speculates)
        url = self.server.url.replace("127.0.0.1", self.host)
        client = SimulatedClient(self.server, url, self.key)
        self.server.clock = lambda: self.now
        self.said: list[str] = []
        self.seen: list[tuple[float, State]] = []
        self.runner = SimulatedRunner(self.server, Generator(client, policy, lambda: self.now))
        self.loop = Loop(
            client,
            policy,
            clock=lambda: self.now,
            runner=self.runner,
            say=self.said.append,
            jitter_seed=7,
            signs=lambda: self.signs(self.now),
        )

    @property
    def state(self) -> State:
        """The present state."""
        return self.loop.snapshot.verdict.state

    @property
    def codes(self) -> list[str]:
        """The present reasons' codes."""
        return [n.code for n in self.loop.snapshot.verdict.notes]

    def run(
        self,
        seconds: float,
        each: Callable[[float], None] | None = None,
        until: Iterable[State] = (),
    ) -> float:
        """Let time pass; `each` is called before every turn with the seconds passed. Ends early
        in one of the `until` states. Returns the seconds that passed."""
        began, stop = self.now, set(until)
        while self.now - began < seconds:
            if each is not None:
                each(self.now - began)
            self.loop.turn(self.now)
            self.seen.append((self.now, self.state))
            if self.state in stop:
                break
            self.now += self.loop.next_look_s()
        return self.now - began

    def to_ready(self) -> None:
        """Through the gate."""
        self.run(600, until=[State.READY])
        assert self.state is State.READY, self.loop.snapshot.verdict.line

    def states(self) -> list[State]:
        """The states gone through, each once a visit."""
        visits: list[State] = []
        for _, state in self.seen:
            if not visits or visits[-1] is not state:
                visits.append(state)
        return visits
