"""Turns the verdict over a made-up server as the loop would, without HTTP: a day in seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deploy.recipe import Health
from healthcheck import verdict
from healthcheck.client.answers import Answer, Failure
from healthcheck.client.exposition import Exposition
from healthcheck.judge import Step
from healthcheck.verdict import Memory, Policy, Reading, Verdict
from tests.bench.traffic import Server, Trouble
from tests.support.scripted_server import MODEL


@dataclass
class Driver:
    """The verdict's memory beside a server; `turn` is one turn of the loop, in simulated time."""

    server: Server
    health: Health
    memory: Memory
    policy: Policy
    turns: int = 0
    canaries: int = 0
    idle_checks: int = 0
    pauses: Trouble | None = None  # of the service itself, when its host sleeps or it is frozen
    paused: int = 0
    signs: bool = True  # of the server's processes are seen

    @property
    def verdict(self) -> Verdict:
        """What the service says now."""
        return verdict.verdict(self.memory, self.server.now)

    def turn(self) -> Reading:
        """Look, advance, start what is wanted, and let time pass to the next turn."""
        server, began = self.server, self.server.now
        finished, outstanding = server.poll()
        answer = server.health()
        gone = isinstance(answer, Failure) and answer.gone
        up = isinstance(answer, Answer)
        listed = server.listing() if up and verdict.needs_listing(self.memory) else None
        metrics: Exposition | Failure | None = None if gone else server.metrics()
        signs = server.signs() if self.signs else None
        reading = Reading(began, answer, listed, metrics, finished, outstanding, signs=signs)
        self.memory = verdict.advance(self.memory, reading, self.policy)
        running = self.memory.outstanding
        if running is not None and running.epoch != self.memory.epoch:
            server.abort()
        want = verdict.wants(self.memory, began, self.policy)
        if want is not None:
            server.start(want)
            self.canaries += want.step is Step.CANARY
            self.idle_checks += want.step is Step.IDLE
        self.turns += 1
        asked = [a.elapsed_s for a in (answer, metrics) if isinstance(a, Failure)]
        server.move(began + sum(asked) + verdict.next_look_s(self.memory, self.policy))
        while self.pauses is not None and self.pauses.at(server.now):
            self.paused += 1
            server.move(self.pauses.ends_at)
        return reading

    def run(self, until: float, each: Callable[[Reading], None] | None = None) -> None:
        """Turn until a time of the server; `each` is called after every turn."""
        while self.server.now < until:
            reading = self.turn()
            if each is not None:
                each(reading)


def driver(
    server: Server, health: Health | None = None, jitter_seed: int = 7, signs: bool = True
) -> Driver:
    """A driver whose service starts now, with a profile's budgets or the common ones."""
    health = health or Health()
    policy = Policy(health, MODEL, speculates=True)
    return Driver(server, health, verdict.begin(server.now, jitter_seed), policy, signs=signs)
