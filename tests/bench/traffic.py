"""A made-up server under mixed traffic, in simulated time: what a loop would read of it, and when.

The traffic is drawn from a seed: quiet nights, busy days, saturation, lone prefills of up to
1,028 s in which only a gauge moves, stalls of the whole engine while a kernel compiles, in its own
process or in a compiler's, or while it is swapped out, probes that time out, scrapes that fail or are answered from a cache, an API process that is late for as long as
it is saturated, upgrades. The truth is known, so a verdict can be false. What goes wrong for good is
set by a test: `wedge`, and the fields of Wrong.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from healthcheck.client.answers import Answer, Failure, FailureKind
from healthcheck.client.exposition import EngineSample, Exposition, Speculation
from healthcheck.client.listing import Listing
from healthcheck.judge import Counters, Step, judge, question
from healthcheck.signs.model import (
    ENGINE_CORE,
    INTERVAL_S,
    OTHERS,
    Card,
    Compiler,
    Process,
    Signs,
)
from healthcheck.verdict import Generation, Outstanding, Want
from tests.support.scripted_server import MODEL, completion

DAY_S = 86_400.0
PROBE_TIMEOUT_S = 5.0
# A 900k-token prefill on MI300X took 1,028 s: the longest one that is known.
LONGEST_PREFILL_S = 1028.0
# Under the readiness budget of 60 s by more than a scrape; a longer one is NOT_READY by contract.
LONGEST_STALL_S = 50.0
# An AITER module set takes hipcc up to that.
LONGEST_COMPILER_S = 250.0
# A server that has just started is not ready, so nobody sends it work while its gate runs.
UNROUTED_S = 600.0
# One canary in so many is a bad answer by chance, and as many are cut on their way.
CHANCE = 500
# A model that reads misses one needle, and one question, in so many by sampling: no figure of any
# model, a bad case.
MISS = 50
PROMPT_TOKENS = 24
NEEDLE = "123456"


class Kind(StrEnum):
    """What the traffic is like for a while."""

    IDLE = "idle"
    LIGHT = "light"
    BUSY = "busy"
    SATURATED = "saturated"
    PREFILL = "lone prefill"
    STALL = "compile stall"
    COMPILER = "compiler"
    SWAPPED = "swapped out"
    DOWN = "restart"


# How fast a generation of ours gets on beside that traffic: 1 is the speed of an idle server.
PACE = {
    Kind.IDLE: 1.0,
    Kind.LIGHT: 0.7,
    Kind.BUSY: 0.3,
    Kind.SATURATED: 0.04,
    Kind.PREFILL: 0.0,
    Kind.STALL: 0.0,
    Kind.COMPILER: 0.0,
    Kind.SWAPPED: 0.0,
    Kind.DOWN: 0.0,
}
# Requests that run, and wait, at most.
WORK = {
    Kind.IDLE: (0, 0),
    Kind.LIGHT: (3, 0),
    Kind.BUSY: (64, 4),
    Kind.SATURATED: (512, 900),
    Kind.PREFILL: (1, 2),
    Kind.STALL: (8, 3),
    Kind.COMPILER: (8, 3),
    Kind.SWAPPED: (8, 3),
    Kind.DOWN: (0, 0),
}


# In these no engine makes a step, however much waits.
STANDING = (Kind.STALL, Kind.COMPILER, Kind.SWAPPED)
# For so long after such a spell /metrics is no cache's: the verdict recovers by what it counts.
UNCACHED_S = 120.0
# While nothing answers us, an exposition from a cache cannot be told from a wedge.
CACHEABLE = (Kind.IDLE, Kind.LIGHT, Kind.BUSY)


@dataclass(frozen=True)
class Spell:
    """A while of one kind of traffic, in seconds."""

    kind: Kind
    seconds: float


def mixed(draw: random.Random, restart_every_s: float = 10 * DAY_S) -> Iterator[Spell]:
    """Spells without an end: nights mostly idle, days mostly busy, with all that may go on."""
    at, restart_at = 0.0, restart_every_s
    while True:
        for spell in _next(draw, at % DAY_S / 3600):
            at += spell.seconds
            yield spell
        if at >= restart_at:
            restart_at += restart_every_s
            yield Spell(Kind.DOWN, draw.uniform(120, 900))
            yield Spell(Kind.IDLE, UNROUTED_S)


def idle() -> Iterator[Spell]:
    """Nobody but us."""
    while True:
        yield Spell(Kind.IDLE, DAY_S)


def _next(draw: random.Random, hour: float) -> Iterator[Spell]:
    night = hour < 6
    pick = draw.random()
    if pick < (0.70 if night else 0.15):
        yield Spell(Kind.IDLE, draw.uniform(60, 7200 if night else 900))
    elif pick < (0.90 if night else 0.40):
        yield Spell(Kind.LIGHT, draw.uniform(10, 600))
    elif pick < (0.96 if night else 0.75):
        if draw.random() < 0.3:
            yield _standing(draw)
        yield Spell(Kind.BUSY, draw.uniform(60, 2400))
    elif pick < (0.97 if night else 0.90):
        yield Spell(Kind.SATURATED, draw.uniform(30, 1800))
    elif pick < 0.99:
        yield Spell(Kind.PREFILL, draw.uniform(30, LONGEST_PREFILL_S))
    else:
        yield _standing(draw)


def _standing(draw: random.Random) -> Spell:
    kind = draw.choice(STANDING)
    longest = LONGEST_COMPILER_S if kind is Kind.COMPILER else LONGEST_STALL_S
    return Spell(kind, draw.uniform(5, longest))


@dataclass
class EngineState:
    """One engine's true numbers, and its scheduler's gauges."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    running: int = 0
    waiting: int = 0
    cache_usage: float = 0.0
    drafts: int = 0
    accepted_at: list[int] = field(default_factory=lambda: [0] * 5)
    wedged: bool = False

    def sample(self, name: str) -> EngineSample:
        accepted = sum(self.accepted_at)
        counted = Speculation(self.drafts, self.drafts * 5, accepted, tuple(self.accepted_at))
        return EngineSample(
            name,
            self.prompt_tokens,
            self.generation_tokens,
            self.running,
            self.waiting,
            self.cache_usage,
            counted,
        )


@dataclass
class Wrong:
    """What a server does wrong from now on; by engine, what only some of them do."""

    garbage: dict[str, float] = field(default_factory=dict)  # the chance of a bad text
    greedy: set[str] = field(default_factory=set)
    lost: bool = False  # tokens are made and counted, answers never come
    replays: bool = False  # every answer is one that was there before


class Trouble:
    """Whiles in which something fails, drawn one after another."""

    def __init__(self, draw: random.Random, a_day: float, least_s: float, most_s: float) -> None:
        self._draw = draw
        self._a_day = a_day
        self._range = least_s, most_s
        self._begin = self._end = 0.0

    @property
    def ends_at(self) -> float:
        """The end of the while that was last asked about."""
        return self._end

    def at(self, now: float) -> bool:
        """Whether it fails now; asked with times that only grow."""
        while self._end <= now:
            self._begin = self._end + self._draw.expovariate(self._a_day / DAY_S)
            self._end = self._begin + self._draw.uniform(*self._range)
        return self._begin <= now


@dataclass
class _Ours:
    """The generation that runs for us: how much of it is left, in seconds of an idle server."""

    want: Want
    began: float
    left_s: float
    engine: str
    done_at: float | None = None


class Server:
    """The server at a time of its own. `move` lets time pass; the rest asks it at that time."""

    def __init__(self, seed: int, spells: Iterator[Spell], engines: int = 1) -> None:
        self.now = 0.0
        self.engines = {str(n): EngineState() for n in range(engines)}
        self.draw = random.Random(f"{seed} server")
        self._spells = spells
        self._spell = next(spells)
        self._left_s = self._spell.seconds
        self._chunk_left_s = 0.0
        self._prefilling = "0"
        self._workload = 0.7
        self._ours: _Ours | None = None
        self._start = 1.0e9
        overlays = random.Random(f"{seed} overlays")
        self._slow = Trouble(overlays, a_day=6, least_s=5, most_s=40)
        self._blind = Trouble(overlays, a_day=6, least_s=5, most_s=90)
        self._cached = Trouble(overlays, a_day=6, least_s=60, most_s=900)
        self._late = Trouble(overlays, a_day=24, least_s=60, most_s=900)
        self._unseen = Trouble(random.Random(f"{seed} unseen"), a_day=4, least_s=60, most_s=1800)
        # Half of the servers show what their cards do.
        self._shows_cards = seed % 4 < 2
        self.signs_fail = True  # now and then nothing is seen of them
        self._wedging: tuple[float, str | None, bool] | None = None
        self._stood_at = -math.inf
        self._stops_at: dict[str, float] = {}
        self._works_at: dict[str, float] = {}
        self._began = 0.0
        self._shown_before: Exposition | None = None
        self.wrong = Wrong()
        self.up_at = 0.0
        self.needles = self.needles_missed = 0
        self.tokens_for_us = 0
        self.prompt_tokens_for_us = 0

    @property
    def kind(self) -> Kind:
        """The traffic now."""
        return self._spell.kind

    @property
    def up(self) -> bool:
        """It runs and is no part of an upgrade."""
        return self.kind is not Kind.DOWN

    @property
    def wedged(self) -> bool:
        """One of its engines makes no step any more."""
        return any(e.wedged for e in self.engines.values())

    @property
    def standing_s(self) -> float:
        """For how long a spell in which no step is made has lasted."""
        return self.now - self._began if self.kind in STANDING else 0.0

    def wedge(self, engine: str | None = None, stopped: bool = False, after_s: float = 0.0) -> None:
        """Stop one engine, or all, for good, in so many seconds: its numbers stay as they are. Its
        processes are `stopped` by a signal, or sleep."""
        self._wedging = self.now + after_s, engine, stopped
        self._wedge_if_due()

    def _wedge_if_due(self) -> None:
        if self._wedging is None or self.now < self._wedging[0]:
            return
        (_, engine, stopped), self._wedging = self._wedging, None
        for name, state in self.engines.items():
            state.wedged = state.wedged or engine in (None, name)
            if stopped and engine in (None, name):
                self._stops_at[name] = self.now

    def mend(self) -> None:
        """Let every engine step again."""
        self._stops_at.clear()
        for state in self.engines.values():
            state.wedged = False

    # --- time

    def move(self, until: float) -> None:
        """Let time pass to `until`, or to the end of our generation if that is sooner."""
        while self.now < until:
            step = min(until - self.now, self._left_s)
            if self._wedging is not None:
                step = min(step, self._wedging[0] - self.now)
            if self.kind is Kind.PREFILL:
                step = min(step, max(self._chunk_left_s, 0.1))  # no two chunks in one step
            ends = self._ours_ends_in(step)
            if ends is not None:
                step = ends
            self._pass(step)
            if ends is not None:
                self._finish()
                return

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        self._left_s -= seconds
        if self.kind in STANDING:
            self._stood_at = self.now
        if self._ours is not None:
            self._ours.left_s -= seconds * self._pace(self._ours.engine)
        for name, state in self.engines.items():
            if self._at_work(name):
                self._works_at[name] = self.now
            if state.wedged:
                continue
            if self.kind is not Kind.PREFILL:
                self._work(state, seconds)
            elif name == self._prefilling:
                self._prefill(state, seconds)
        self._wedge_if_due()
        if self._left_s <= 0:
            self._change()

    def _change(self) -> None:
        before = self.kind
        self._spell = next(self._spells)
        self._left_s = self._spell.seconds
        self._began = self.now
        # By workload: PR 51145 saw 0.73 at position 0, the least that is healthy is 0.27.
        self._workload = self.draw.uniform(0.30, 0.92)
        if self.kind is Kind.DOWN:
            self._ours = None
        if before is Kind.DOWN:
            self._start += 1000.0
            self.engines = {name: EngineState() for name in self.engines}
            self.up_at = self.now
        self._prefilling = self.draw.choice(list(self.engines))
        running, waiting = WORK[self.kind]
        for name, state in self.engines.items():
            if state.wedged:
                continue
            works = self.kind is not Kind.PREFILL or name == self._prefilling
            state.running = self.draw.randint(min(running, 1), running) if works else 0
            state.waiting = self.draw.randint(0, waiting) if works else 0
            if self.kind in (Kind.IDLE, Kind.PREFILL):
                state.cache_usage = 0.0

    def _work(self, state: EngineState, seconds: float) -> None:
        kind = self.kind
        if kind in (Kind.IDLE, *STANDING, Kind.DOWN) or seconds <= 0:
            return
        running, waiting = WORK[kind]
        state.running = min(max(state.running + self.draw.randint(-2, 2), 1), running)
        state.waiting = min(max(state.waiting + self.draw.randint(-9, 9), 0), waiting)
        state.cache_usage = min(state.running / 600 + self.draw.random() / 50, 1.0)
        made = int(seconds * state.running * 12) + self.draw.randint(0, 3)
        state.generation_tokens += made
        state.prompt_tokens += self.draw.randint(0, 400) if self.draw.random() < 0.6 else 0
        self._draft(state, made // 3, self._workload)

    def _prefill(self, state: EngineState, seconds: float) -> None:
        """Only a gauge moves, at every chunk."""
        self._chunk_left_s -= seconds
        if self._chunk_left_s <= 0:
            # Chunks of 8,192 tokens take longer the more stands before them.
            self._chunk_left_s = self.draw.uniform(2, 20)
            state.cache_usage += self.draw.uniform(1e-4, 8e-3)

    def _draft(self, state: EngineState, drafts: int, rate: float) -> None:
        state.drafts += drafts
        left = drafts
        for position in range(5):
            # The normal form of a binomial draw: exact ones are slow for thousands of drafts.
            spread = (left * rate * (1 - rate)) ** 0.5
            left = min(max(round(self.draw.gauss(left * rate, spread)), 0), left)
            state.accepted_at[position] += left

    # --- our generations

    def start(self, want: Want) -> None:
        """Begin one; single flight."""
        assert self._ours is None, "single flight"
        longest = max(want.prompt_tokens / 8000, want.tokens / 100)
        # Without a wish the server gives it to an engine with the least work.
        work = {name: e.running + e.waiting for name, e in self.engines.items()}
        least = [name for name, count in work.items() if count == min(work.values())]
        chosen = want.engine or self.draw.choice(least)
        seconds = 0.2 + longest + self.draw.uniform(0, 0.8)
        if want.step is Step.WARM_UP:
            seconds += self.draw.uniform(5, 120)  # the first request compiles
        self._ours = _Ours(want, self.now, seconds, chosen)

    def _pace(self, engine: str) -> float:
        """How fast a generation of ours gets on with that engine."""
        if self.engines[engine].wedged:
            return 0.0
        beside = self.kind is Kind.PREFILL and engine != self._prefilling
        return PACE[Kind.IDLE if beside else self.kind]

    def _ours_ends_in(self, step: float) -> float | None:
        """Seconds until our generation has finished or timed out, if within the step."""
        ours = self._ours
        if ours is None or ours.done_at is not None:
            return None
        times = [ours.began + ours.want.timeout_s - self.now]
        pace = self._pace(ours.engine)
        if pace:
            times.append(ours.left_s / pace)
        soonest = max(min(times), 0.0)
        return soonest if soonest <= step else None

    def _finish(self) -> None:
        ours = self._ours
        assert ours is not None
        ours.done_at = self.now
        if ours.left_s > 1e-9:
            return  # it timed out
        want = ours.want
        for name in [*want.ranks] or [ours.engine] * want.requests:
            state = self.engines[name]
            state.prompt_tokens += want.prompt_tokens or PROMPT_TOKENS
            state.generation_tokens += want.tokens
            self.prompt_tokens_for_us += want.prompt_tokens or PROMPT_TOKENS
            self.tokens_for_us += want.tokens
            self._draft(state, max(want.tokens // 3, 1), 0.7)
        if self.wrong.lost:
            ours.left_s, ours.done_at = math.inf, None

    def poll(self) -> tuple[Generation | None, Outstanding | None]:
        """As a loop's runner tells it: the one that has finished, and the one that runs."""
        ours = self._ours
        if ours is None:
            return None, None
        want = ours.want
        if ours.done_at is None:
            return None, Outstanding(want.step, want.epoch, ours.began, want.engine)
        self._ours = None
        answer: Answer | Failure = self._answer(want, ours.engine)
        if ours.left_s > 1e-9:
            answer = Failure(FailureKind.TIMEOUT, "simulated", want.timeout_s)
        if want.step is Step.QUESTION:
            return self._reckoned(want, ours, answer), None
        counters = Counters(Speculation(), Speculation(1, 5, 3, (1, 1, 1, 0, 0)))
        findings, made = judge(
            answer,
            asked_tokens=want.tokens,
            counters=counters if want.scored else None,
            scored=want.scored,
            plain=want.step is not Step.TOP_P,
            number=NEEDLE if want.prompt_tokens else None,
            needle=want.step is Step.LONG,
        )
        done = Generation(
            want.step, want.epoch, ours.began, ours.done_at, findings, made, want.engine
        )
        return done, None

    def _reckoned(self, want: Want, ours: _Ours, answer: Answer | Failure) -> Generation:
        """The gate's question, answered rightly but for one in MISS; a server of garbage rambles."""
        task, _ = question.ask(MODEL, want.nonce, want.seed, want.tokens)
        wrong = ours.engine in self.wrong.garbage or self.draw.randrange(MISS) == 0
        if isinstance(answer, Answer):
            said = "river stone bread" if wrong else f"Answer: {task.answer}"
            message = {"choices": [{"message": {"role": "assistant", "content": said}}]}
            answer = Answer(200, json.dumps(message).encode())
        found = question.judged(answer, task)
        assert ours.done_at is not None
        return Generation(want.step, want.epoch, ours.began, ours.done_at, found)

    def _answer(self, want: Want, engine: str) -> Answer:
        nonce = "cached" if self.wrong.replays else want.nonce
        body = completion(nonce, want.seed * (not self.wrong.replays), want.tokens)
        choice = body["choices"][0]
        if engine in self.wrong.greedy:
            best = [max(row.values()) for row in choice["logprobs"]["top_logprobs"]]
            choice["logprobs"]["token_logprobs"] = best
        if want.prompt_tokens:
            missed = want.step is Step.LONG and self.draw.randrange(MISS) == 0
            self.needles += want.step is Step.LONG
            self.needles_missed += missed
            number = NEEDLE[::-1] if missed else NEEDLE
            choice["text"] = f" {number}. Words: river stone bread.{choice['text']}"
        afterwards = not want.scored or want.step is Step.IDLE
        chance = self.draw.randrange(CHANCE) if afterwards else CHANCE
        if chance == 0 or self.draw.random() < self.wrong.garbage.get(engine, 0.0):
            # One token over and over: a bad answer.
            body["choices"][0]["token_ids"] = [7] * want.tokens
        text = json.dumps(body)
        return Answer(200, (text[:40] if chance == 1 else text).encode())

    def abort(self) -> None:
        """The loop gives our generation up."""
        self._ours = None

    # --- probes

    def health(self) -> Answer | Failure:
        """GET /health: refused in a restart, late when the event loop is slow."""
        if not self.up:
            return Failure(FailureKind.REFUSED, "simulated")
        if self._is_late():
            return Failure(FailureKind.TIMEOUT, "simulated", PROBE_TIMEOUT_S)
        return Answer(200)

    def _is_late(self) -> bool:
        """The API process answers nothing in time: for a while, or as long as it is saturated."""
        late = self._late.at(self.now) and self.kind is Kind.SATURATED
        return self._slow.at(self.now) or late

    def metrics(self) -> Exposition | Failure:
        """GET /metrics, parsed; it fails, or is what a proxy kept, for whiles of its own."""
        if self._is_late():
            return Failure(FailureKind.TIMEOUT, "simulated", PROBE_TIMEOUT_S)
        if self._blind.at(self.now):
            return Failure(FailureKind.MALFORMED, "/metrics answered 500")
        cached = self._cached.at(self.now) and self.kind in CACHEABLE
        if cached and self.now - self._stood_at > UNCACHED_S and self._shown_before:
            return self._shown_before
        shown = tuple(self._shown(n) for n in self.engines)
        self._shown_before = Exposition(self._start, shown)
        return self._shown_before

    def _shown(self, name: str) -> EngineSample:
        """An engine's sample. Behind a lone prefill, which takes every step for itself, our own
        generation waits, and is counted so."""
        ours, sample = self._ours, self.engines[name].sample(name)
        behind = ours is not None and ours.done_at is None and ours.engine == name
        if behind and self.kind is Kind.PREFILL and name == self._prefilling:
            return replace(sample, waiting=sample.waiting + 1)
        return sample

    # --- processes

    def _at_work(self, name: str) -> bool:
        """Whether an engine burns CPU: not while it waits for its card, or for a compiler."""
        state, ours = self.engines[name], self._ours
        if state.wedged:
            return False
        if ours is not None and ours.done_at is None and ours.engine == name and self._pace(name):
            return True
        works = state.running > 0 or self.kind in (Kind.SATURATED, Kind.BUSY)
        return works and self.kind not in (Kind.PREFILL, Kind.COMPILER)

    def signs(self) -> Signs | None:
        """What a writer beside it saw last, up to two seconds ago."""
        if not self.up or (self.signs_fail and self._unseen.at(self.now)):
            return None
        at = self.now - self.now % INTERVAL_S
        several = len(self.engines) > 1
        processes = [Process("APIServer", 1, "S", 0.0, None, 1.0, 8, 1)]
        for name in self.engines:
            # Asleep since the first look after its last work, if the one after that saw no other.
            began = -((-self._works_at.get(name, 0.0)) // INTERVAL_S) * INTERVAL_S
            still = began if began < at else None
            dp = f"_DP{name}" if several else ""
            letter, since = ("S", began) if still is not None else ("R", at)
            if name in self._stops_at and self._stops_at[name] <= at:
                since = -((-self._stops_at[name]) // INTERVAL_S) * INTERVAL_S
                letter, still = "T", None
            elif self.kind is Kind.SWAPPED:
                letter, still = ("D" if at % (2 * INTERVAL_S) else "S"), None
            for role in (ENGINE_CORE, "Worker"):
                processes.append(Process(f"{role}{dp}", 1, letter, since, still, 1.0, 8, 1))
        processes.append(Process(OTHERS, 0, "S", 0.0, 0.0, 0.0, 0, 0))
        compiling = self.kind is Kind.COMPILER
        busy = any(e.running and not e.wedged for e in self.engines.values())
        busy = busy and self.kind not in STANDING
        one = Card("0000:c1:00.0", 100 if busy else 0, at if busy else 0.0, 1, 2, 0, 0, 0)
        return Signs(
            at,
            0.0,
            "boot",
            tuple(processes),
            (Compiler("hipcc", self._began, self.standing_s),) if compiling else (),
            (one,) if self._shows_cards else None,
        )

    def listing(self) -> Listing:
        """GET /v1/models."""
        return Listing((MODEL,), 1_048_576)
