"""Other projects' health probes, emulated from their documented parameters, in our own words.

Each is a small machine over a `View` of a server and a clock that is passed in, so that the same
emulation judges a real server and a scripted one in simulated time. All are asked once a second and
their first bad verdict counts, without a prober's failure threshold, which favours them.

Sources, as names and versions only:
- vLLM 0.27.1, GET /health.
- SGLang 0.5, GET /health_generate: one greedy token; any output of the engine after the question
  passes it; SGLANG_HEALTH_CHECK_TIMEOUT 20 s.
- NVIDIA Dynamo 1.x, canary health check: DYN_CANARY_WAIT_TIME 10 s without activity, then one greedy
  token, DYN_HEALTH_CHECK_REQUEST_TIMEOUT 3 s; the first answer decides.
- gonka: progress of the token counters while there is work, about two minutes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from healthcheck.client import Client, exposition
from healthcheck.client.answers import Answer
from healthcheck.client.cancel import Cancel
from healthcheck.client.exposition import Exposition
from tests.support.scripted_server import ScriptedServer

SGLANG_TIMEOUT_S = 20.0
DYNAMO_IDLE_S = 10.0
DYNAMO_TIMEOUT_S = 3.0
COUNTERS_BUDGET_S = 120.0


@dataclass(frozen=True)
class Counts:
    """The token counters, and whether requests run or wait."""

    generated: float
    prompted: float
    work: bool


class Asked(Protocol):
    """A question that was sent."""

    def answered(self) -> bool | None:
        """True: 200; False: anything else; None: nothing yet."""

    def drop(self) -> None:
        """Give it up."""


class View(Protocol):
    """What a probe can see of a server."""

    def health(self) -> int | None:
        """The status of GET /health, None without an answer."""

    def counts(self) -> Counts | None:
        """Of /metrics, None without an answer."""

    def ask(self) -> Asked:
        """Send one greedy token's worth of work."""


class Peer(Protocol):
    """A probe; `turn` is called once a second and says what it holds of the server now."""

    name: str

    def turn(self, now: float, view: View) -> bool:
        """True: healthy, or nothing known against it."""


@dataclass
class VllmHealth:
    """GET /health: the engine's processes are there."""

    name: str = "vLLM /health"

    def turn(self, now: float, view: View) -> bool:
        return view.health() == 200


@dataclass
class GreedyProbe:
    """SGLang's: one greedy token; passes with any output since, fails after 20 s without."""

    name: str = "greedy probe (SGLang)"
    asked: Asked | None = None
    asked_at: float = 0.0
    generated: float = 0.0
    healthy: bool = True

    def turn(self, now: float, view: View) -> bool:
        counts = view.counts()
        generated = counts.generated if counts else self.generated
        if self.asked is None:
            self.asked, self.asked_at, self.generated = view.ask(), now, generated
            return self.healthy
        answer = self.asked.answered()
        if answer or generated > self.generated:
            self._end(True)
        elif answer is False or now - self.asked_at >= SGLANG_TIMEOUT_S:
            self._end(False)
        return self.healthy

    def _end(self, healthy: bool) -> None:
        assert self.asked is not None
        self.asked.drop()
        self.asked, self.healthy = None, healthy


@dataclass
class IdleCanary:
    """Dynamo's: after 10 s without output one greedy token, due within 3 s."""

    name: str = "idle canary (Dynamo)"
    asked: Asked | None = None
    asked_at: float = 0.0
    generated: float | None = None
    active_at: float | None = None
    healthy: bool = True

    def turn(self, now: float, view: View) -> bool:
        counts = view.counts()
        generated = counts.generated if counts else self.generated
        if generated != self.generated or self.active_at is None:
            self.generated, self.active_at = generated, now
        if self.asked is None:
            if now - self.active_at >= DYNAMO_IDLE_S:
                self.asked, self.asked_at = view.ask(), now
            return self.healthy
        answer = self.asked.answered()
        if answer is not None or now - self.asked_at >= DYNAMO_TIMEOUT_S:
            self.asked.drop()
            self.asked, self.active_at, self.healthy = None, now, bool(answer)
        return self.healthy


@dataclass
class CounterProgress:
    """gonka's: there is work and the token counters have not moved for two minutes."""

    name: str = "counter progress"
    seen: tuple[float, float] | None = None
    moved_at: float = 0.0

    def turn(self, now: float, view: View) -> bool:
        counts = view.counts()
        if counts is None:
            return False
        tokens = (counts.generated, counts.prompted)
        if tokens != self.seen or not counts.work:
            self.seen, self.moved_at = tokens, now
        return now - self.moved_at < COUNTERS_BUDGET_S


def peers() -> list[Peer]:
    """One of each, new."""
    return [VllmHealth(), GreedyProbe(), IdleCanary(), CounterProgress()]


def greedy_token(model: str) -> dict[str, Any]:
    """The request of the two that generate: one token id in, one greedy token out."""
    return {"model": model, "prompt": [1], "max_tokens": 1, "temperature": 0, "seed": 0}


class RealView:
    """A server over HTTP."""

    def __init__(self, url: str, model: str) -> None:
        self._client = Client(url)
        self._model = model

    def health(self) -> int | None:
        answer = self._client.get("/health", deadline_s=5)
        return answer.status if isinstance(answer, Answer) else None

    def counts(self) -> Counts | None:
        seen = exposition.read(self._client.get("/metrics", deadline_s=5))
        return _counts(seen) if isinstance(seen, Exposition) else None

    def ask(self) -> Asked:
        return _Threaded(self._client, greedy_token(self._model))


def _counts(seen: Exposition) -> Counts:
    return Counts(
        sum(e.generation_tokens for e in seen.engines),
        sum(e.prompt_tokens for e in seen.engines),
        any(e.has_work for e in seen.engines),
    )


class _Threaded:
    """A question in a thread of its own; dropped, its connection is closed."""

    def __init__(self, client: Client, payload: Mapping[str, Any]) -> None:
        self._cancel = Cancel()
        self._answer: bool | None = None
        thread = threading.Thread(target=self._run, args=(client, payload), daemon=True)
        thread.start()

    def _run(self, client: Client, payload: Mapping[str, Any]) -> None:
        answer = client.post("/v1/completions", payload, deadline_s=600, cancel=self._cancel)
        self._answer = isinstance(answer, Answer) and answer.status == 200

    def answered(self) -> bool | None:
        return self._answer

    def drop(self) -> None:
        if self._answer is None:
            self._cancel.abort()


@dataclass
class ScriptedView:
    """A scripted server in simulated time: while it is hung, a question waits."""

    server: ScriptedServer

    def health(self) -> int | None:
        return self.server.health[0] if self.server.health else None

    def counts(self) -> Counts | None:
        engines = self.server.engines.values()
        return Counts(
            sum(e.generation_tokens for e in engines),
            sum(e.prompt_tokens for e in engines),
            any(e.running + e.waiting for e in engines),
        )

    def ask(self) -> Asked:
        return _Scripted(self.server)


@dataclass
class _Scripted:
    server: ScriptedServer
    answer: bool | None = field(default=None)

    def answered(self) -> bool | None:
        if self.answer is None and not self.server.hung:
            payload = {**greedy_token(self.server.models[0]), "prompt": "x", "logprobs": 1}
            reply = self.server.answer("POST", "/v1/completions", payload, "")
            self.answer = reply is not None and reply[0] == 200
        return self.answer

    def drop(self) -> None:
        """Nothing was sent."""
