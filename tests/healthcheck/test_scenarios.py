"""Faults against the whole loop: real HTTP to a scripted server, simulated time.

Each row of SCENARIOS is one story: what the server does, and the states the verdict goes through.
"""

from __future__ import annotations

import json
import random
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from deploy.recipe import Health
from healthcheck.service import generate, settings
from healthcheck.verdict import State
from tests.support.scripted_server import (
    Engine,
    Reply,
    completion,
    error,
    scripted_server,
    tokens_of,
)
from tests.support.simulation import Simulation

LOADING, SMOKE, READY = State.LOADING, State.SMOKE, State.READY
DEGRADED, NOT_READY, STALLED = State.DEGRADED, State.NOT_READY, State.STALLED
DEAD, DRAINING = State.DEAD, State.DRAINING

NAN_BODY = "Out of range float values are not JSON compliant"

Play = Callable[[Simulation], None]


@pytest.fixture(autouse=True)
def _counted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server generates it counts before it answers: no count comes later, in real time."""
    monkeypatch.setattr(generate, "COUNTER_LAG_S", 0.0)


@dataclass(frozen=True)
class Scenario:
    """One story: the server at first, what happens once READY (or from the start), the states
    gone through, and the reasons at the end."""

    name: str
    states: tuple[State, ...]
    play: Play
    codes: tuple[str, ...] | None = None
    server: dict[str, Any] = field(default_factory=dict)
    from_ready: bool = True
    health: dict[str, Any] = field(default_factory=dict)


def busy(simulation: Simulation, seconds: float) -> None:
    simulation.run(seconds, each=lambda _: simulation.server.serve_traffic())


def one_token_only(s: Simulation) -> None:
    s.server.spoil["0"] = one_token
    s.run(300)


def nan(s: Simulation) -> None:
    s.server.on_completion = lambda _: error(400, NAN_BODY)
    s.run(200)


def long_load(s: Simulation) -> None:
    s.server.down()
    s.run(7200)
    s.server.up()
    s.run(60)


def killed(s: Simulation) -> None:
    s.server.health = (503, b"")
    s.run(0.5)
    s.server.down()
    s.run(60)


def exits_and_restarts(s: Simulation) -> None:
    s.server.down()
    s.run(120)
    s.server.restart()
    s.server.up()
    s.run(60)


def quick_restart(s: Simulation) -> None:
    s.server.restart()
    s.run(60)


def wedge(s: Simulation) -> None:
    s.server.hung = True
    s.run(1000)


def wedge_and_recover(s: Simulation) -> None:
    s.server.hung = True
    s.run(250)
    s.server.hung = False
    s.run(60)


def lone_prefill(s: Simulation) -> None:
    engine = s.server.engines["0"]
    engine.running = 1
    s.server.hung = True  # anything else queues behind it

    def chunk(_: float) -> None:
        engine.cache_usage += 0.0005

    s.run(1028, each=chunk)
    s.server.hung = False
    s.server.idle()
    s.run(120)


def saturated(s: Simulation) -> None:
    s.server.hung = True  # a canary would time out
    for engine in s.server.engines.values():
        engine.waiting = 20
    busy(s, 900)


def one_engine_frozen(s: Simulation) -> None:
    step = two_engines(s)
    s.server.engines["1"].running = 2
    s.server.hung_engines = {"1"}
    s.run(1000, each=step)


def two_engines(s: Simulation) -> Callable[[float], None]:
    """READY with two engines; what each turn does then: the first one works, the second is idle."""
    s.server.engines["1"] = Engine()
    s.to_ready()

    def step(_: float) -> None:
        first = s.server.engines["0"]
        first.running = 1
        first.generation_tokens += 50
        first.draft(10, s.server.rates)

    return step


def idle_engine_wedged(s: Simulation) -> None:
    step = two_engines(s)
    s.server.hung_engines = {"1"}
    s.run(1000, each=step)


def one_engine_idle(s: Simulation) -> None:
    step = two_engines(s)
    s.run(3600, each=step)
    assert s.server.engines["1"].generation_tokens > 0, "nobody asked the idle one"


def acceptance(rates: tuple[float, ...]) -> Play:
    def play(s: Simulation) -> None:
        engine = s.server.engines["0"]

        def step(_: float) -> None:
            engine.running = 1
            engine.generation_tokens += 10
            engine.draft(200, rates)

        s.run(120, each=step)

    return play


def draft_dies(s: Simulation) -> None:
    s.run(120, each=lambda _: s.server.serve_traffic(drafts=0))


def one_token_requests(s: Simulation) -> None:
    """Prefills only: a classifier's load, or another service's probe."""
    engine = s.server.engines["0"]

    def step(_: float) -> None:
        engine.running = 1
        engine.prompt_tokens += 900
        engine.generation_tokens += 300
        engine.first_tokens += 300

    s.run(250, each=step)


def turns_greedy(s: Simulation) -> None:
    s.server.greedy = True
    s.run(400)


def nan_under_traffic(s: Simulation) -> None:
    s.server.on_completion = lambda _: error(400, NAN_BODY)
    busy(s, 500)


def first_answer_after_idleness_is_garbage(s: Simulation) -> None:
    s.server.garbles_after_s = 20.0
    s.run(1000, until=[DEGRADED])


def next_process_is_well(s: Simulation) -> None:
    s.run(60)
    assert s.codes == ["text.garbage", "gate.failed"]
    s.server.restart()
    s.run(120)


def mixed_hour(s: Simulation) -> None:
    for _ in range(10):
        busy(s, 180)
        s.server.idle()
        s.run(180)


def wait(seconds: float) -> Play:
    def play(s: Simulation) -> None:
        s.run(seconds)

    return play


def slow_to_accept(s: Simulation) -> None:
    """The port is open and nothing answers, as while the API process imports."""
    s.server.blocked = True
    s.run(60)
    s.server.blocked = False
    s.run(60)


def blocked_event_loop(s: Simulation) -> None:
    s.server.blocked = True
    s.run(20)
    s.server.blocked = False
    s.run(60)


def stopped_in_mid_stream(s: Simulation) -> None:
    """A user's request runs, some tokens are out, and nothing moves any more."""
    busy(s, 30)
    s.server.hung = True
    s.run(1000)


def suspended_when_busy(s: Simulation) -> None:
    """The service is not run for an hour, as on a host that sleeps."""
    busy(s, 60)
    s.now += 3600
    busy(s, 60)


def slow_loris(s: Simulation) -> None:
    """The engine makes its steps; what it says trickles out."""
    s.server.drip_s = 0.05
    s.run(300)


HUGE = (200, b"x" * 100_000_000)
HALF = (200, b'{"choices": [{"text": "half')


def huge(s: Simulation) -> None:
    s.server.on_completion = lambda _: HUGE
    s.run(250)


def metrics_failing(s: Simulation) -> None:
    s.server.metrics = (500, b"Internal Server Error")
    s.run(600)


def counters_back(s: Simulation) -> None:
    """Counters at zero under the same start time: a proxy now asks another replica."""
    busy(s, 60)
    s.server.engines = {name: Engine() for name in s.server.engines}
    s.run(60)


def truncated(s: Simulation) -> None:
    s.server.on_completion = lambda _: HALF
    s.run(250)


def one_token(choice: dict[str, Any]) -> None:
    choice["token_ids"] = [7] * len(choice["token_ids"])


def now_and_then(s: Simulation) -> None:
    """Garbage comes and goes: every third answer is one, by chance."""
    draw = random.Random(5)
    s.server.spoil["0"] = lambda choice: one_token(choice) if not draw.randrange(3) else None
    s.run(1200)


def once(s: Simulation) -> None:
    """One bad answer, and good ones from then on."""

    def spoil(choice: dict[str, Any]) -> None:
        one_token(choice)
        s.server.spoil.clear()

    s.server.spoil["0"] = spoil
    s.run(600)


def garbage_when_saturated(s: Simulation) -> None:
    s.server.spoil["0"] = one_token
    s.server.engines["0"].waiting = 5
    busy(s, 2000)


def replayed(s: Simulation) -> None:
    cached = json.dumps(completion("something else", 1, 8)).encode()
    s.server.on_completion = lambda _: (200, cached)
    s.run(250)


def made_and_not_answered(s: Simulation) -> None:
    """Every canary's tokens are counted, and no answer arrives."""
    s.server.hung = True
    counted: list[object] = []

    def count(_: float) -> None:
        running = s.runner.running
        if running is not None and running not in counted:
            counted.append(running)
            s.server.complete(s.runner.generator.payload(running[0], running[1]))

    s.run(600, each=count)


def others_metrics(s: Simulation) -> None:
    s.server.hung = True
    with scripted_server(process_start=s.server.process_start) as other:
        other.engines["0"] = replace(s.server.engines["0"])

        def step(_: float) -> None:
            other.serve_traffic()
            s.server.metrics = (200, other.exposition().encode())

        s.run(1200, each=step)


def frozen_metrics(running: int) -> Play:
    def play(s: Simulation) -> None:
        s.server.engines["0"].running = running
        s.server.metrics = (200, s.server.exposition().encode())
        s.run(2400)

    return play


def saturated_api(s: Simulation) -> None:
    """What waits for the API process is late; generations are answered all the same."""
    s.server.engines["0"].waiting = 50
    busy(s, 60)
    s.server.blocked, s.server.takes_s = True, 100.0
    s.run(140)


def suspended_asking(s: Simulation) -> None:
    s.server.hung = True
    while s.runner.running is None:
        s.run(5)
    s.now += 900
    s.run(0.1)  # its time is over
    s.server.hung, s.server.takes_s = False, 4.0
    s.run(120)


def restarted_beside_saturation(s: Simulation) -> None:
    s.server.engines["0"].waiting = 50
    s.server.takes_s = 200.0
    busy(s, 2200)


def a_moment_of_503(s: Simulation) -> None:
    s.server.health = (503, b"")
    s.run(3)
    s.server.health = (200, b"")
    s.run(60)


def eight() -> dict[str, Engine]:
    return {str(n): Engine() for n in range(8)}


def one_engine_spoiled(s: Simulation) -> None:
    s.run(60)
    s.server.spoil["3"] = one_token
    s.run(900, until=[NOT_READY])


def one_engine_vanishes(s: Simulation) -> None:
    del s.server.engines["5"]
    s.run(300)


def two_servers(s: Simulation) -> None:
    """At every look the other one answers: both well, and neither the one that was asked."""
    own = s.server.process_start
    del s.server.completions[:]

    def switch(passed: float) -> None:
        s.server.process_start = own + 1000 * (round(passed) % 2)

    s.run(1800, each=switch)
    assert len(s.server.completions) < 60


OUT_BY_TEXT = (READY, DEGRADED, NOT_READY)

SCENARIOS = [
    Scenario("mixed hour", (READY,), mixed_hour, ()),
    Scenario("load of two hours", (LOADING, SMOKE, READY), long_load, (), from_ready=False),
    Scenario(
        "load over budget",
        (LOADING,),
        wait(700),
        ("start.over_budget", "config.wrong_model"),
        {"models": ()},
        from_ready=False,
        health={"start_budget_s": 600.0},
    ),
    Scenario(
        "port open, nothing answers yet",
        (LOADING, SMOKE, READY),
        slow_to_accept,
        (),
        from_ready=False,
    ),
    Scenario(
        "event loop blocked for 20 s",
        (READY, DEGRADED, READY),
        blocked_event_loop,
        (),
    ),
    Scenario("service suspended for an hour while busy", (READY,), suspended_when_busy, ()),
    Scenario("counters go back", (READY, SMOKE, READY), counters_back, ()),
    Scenario(
        "stopped in mid-stream",
        (READY, NOT_READY, STALLED),
        stopped_in_mid_stream,
        ("progress.stalled",),
    ),
    Scenario("/metrics fails", (READY, DEGRADED), metrics_failing, ("metrics.unavailable",)),
    Scenario("an answer of 100 MB", (READY, NOT_READY), huge, ("generation.failed",)),
    Scenario(
        "an answer byte by byte",
        (READY, DEGRADED),
        slow_loris,
        ("generation.timeout",),
        health={"canary_timeout_s": 0.3, "generation_timeout_s": 20.0},
    ),
    Scenario("engine killed", (READY, NOT_READY, DEAD), killed, ("server.engine_dead",)),
    Scenario(
        "/health 503 for 3 s",
        (READY, NOT_READY, READY),
        a_moment_of_503,
        (),
    ),
    Scenario(
        "exit 0 and restart",
        (READY, NOT_READY, DEAD, SMOKE, READY),
        exits_and_restarts,
        (),
    ),
    Scenario("restart between two scrapes", (READY, SMOKE, READY), quick_restart, ()),
    Scenario(
        "wedge while idle",
        (READY, NOT_READY, STALLED),
        wedge,
        ("progress.stalled",),
    ),
    Scenario(
        "JIT stall of 250 s",
        (READY, NOT_READY, READY),
        wedge_and_recover,
        (),
    ),
    Scenario(
        "lone prefill of 1,028 s",
        (READY,),
        lone_prefill,
        (),
    ),
    Scenario(
        "saturated, canaries would time out",
        (READY,),
        saturated,
        (),
    ),
    Scenario(
        "one of two engines frozen for good",
        (LOADING, SMOKE, READY, NOT_READY, STALLED),
        one_engine_frozen,
        ("progress.stalled",),
        from_ready=False,
    ),
    Scenario(
        "NaN weights",
        (LOADING, SMOKE),
        nan,
        ("numerics.nan", "gate.failed"),
        from_ready=False,
    ),
    Scenario("one repeated token", OUT_BY_TEXT, one_token_only, ("text.one_token",)),
    Scenario(
        "every third answer is garbage",
        OUT_BY_TEXT,
        now_and_then,
        ("text.one_token",),
    ),
    Scenario(
        "one bad answer by chance",
        (READY, DEGRADED, READY),
        once,
        (),
    ),
    Scenario(
        "garbage from a server that is saturated for a day",
        OUT_BY_TEXT,
        garbage_when_saturated,
        ("text.one_token",),
    ),
    Scenario(
        "a proxy answers with one cached completion",
        OUT_BY_TEXT,
        replayed,
        ("text.replayed",),
    ),
    Scenario(
        "answers never come, though their tokens are made",
        (READY, NOT_READY),
        made_and_not_answered,
        ("generation.unanswered",),
    ),
    Scenario(
        "answers never come, and /metrics is of another process",
        (READY, NOT_READY),
        others_metrics,
        ("generation.unanswered",),
    ),
    Scenario(
        "/metrics is frozen at work, generations are answered",
        (READY, DEGRADED),
        frozen_metrics(running=1),
        ("metrics.uncounted",),
    ),
    Scenario(
        "/metrics is frozen at idleness, generations are answered",
        (READY, DEGRADED),
        frozen_metrics(running=0),
        ("metrics.uncounted",),
    ),
    Scenario(
        "/health and /metrics too late under saturation, answers after 100 s",
        (READY, DEGRADED),
        saturated_api,
        ("server.slow", "metrics.unavailable"),
    ),
    Scenario(
        "service suspended with a canary out, answers after 4 s", (READY,), suspended_asking, ()
    ),
    Scenario(
        "service restarted beside a saturated server, answers after 200 s",
        (LOADING, SMOKE, READY),
        restarted_beside_saturation,
        (),
        from_ready=False,
    ),
    Scenario(
        "one of eight engines writes garbage from the start",
        (LOADING, SMOKE),
        wait(120),
        ("text.one_token", "gate.failed"),
        {"engines": eight(), "spoil": {"6": one_token}},
        from_ready=False,
    ),
    Scenario(
        "one of eight engines drafts nothing from the start",
        (LOADING, SMOKE),
        wait(120),
        ("speculation.not_drafting", "gate.failed"),
        {"engines": eight(), "undrafted_engines": {"5"}},
        from_ready=False,
    ),
    Scenario(
        "one of eight idle engines turns to garbage",
        OUT_BY_TEXT,
        one_engine_spoiled,
        ("text.one_token",),
        {"engines": eight()},
    ),
    Scenario(
        "one of eight engines is shown no more",
        (READY, DEGRADED),
        one_engine_vanishes,
        ("engine.vanished",),
        {"engines": eight()},
    ),
    Scenario(
        "two servers behind one address",
        (READY, SMOKE),
        two_servers,
        server={},
    ),
    Scenario(
        "greedy instead of sampled",
        (LOADING, SMOKE),
        wait(60),
        ("sampling.greedy", "gate.failed"),
        {"greedy": True},
        from_ready=False,
    ),
    Scenario(
        "seed ignored",
        (LOADING, SMOKE),
        wait(60),
        ("sampling.seed_ignored", "gate.failed"),
        {"fixed_seed": True},
        from_ready=False,
    ),
    Scenario(
        "served without a draft",
        (LOADING, SMOKE),
        wait(60),
        ("speculation.absent", "gate.failed"),
        {"speculates": False},
        from_ready=False,
    ),
    Scenario(
        "no prompt is read",
        (LOADING, SMOKE),
        wait(60),
        ("text.needle_missed", "gate.failed"),
        {"reads_tokens": 0},
        from_ready=False,
    ),
    Scenario(
        "prompts past 2,048 tokens are not read: the sparse indexer",
        (LOADING, SMOKE),
        wait(60),
        ("text.needle_missed_past_2048", "gate.failed"),
        {"reads_tokens": 2048},
        from_ready=False,
    ),
    Scenario(
        "the first answer after 20 s of idleness is words of nothing",
        (READY, DEGRADED),
        first_answer_after_idleness_is_garbage,
        ("text.garbage",),
    ),
    Scenario(
        "words of nothing in one process, decided at its start",
        (LOADING, SMOKE, READY),
        next_process_is_well,
        (),
        {"garbled_processes": frozenset({0})},
        from_ready=False,
    ),
    Scenario(
        # What it costs in answers no probe of text sees; drafts of the right model fit a bit less.
        "experts without their clamp: everything that is asked here holds",
        (LOADING, SMOKE, READY),
        mixed_hour,
        (),
        {"rates": (0.6, 0.4, 0.25, 0.15)},
        from_ready=False,
    ),
    Scenario(
        "words of nothing",
        (LOADING, SMOKE),
        wait(60),
        ("text.garbage", "gate.failed"),
        {"garbles": True},
        from_ready=False,
    ),
    Scenario(
        "words of nothing around a needle that is found",
        (LOADING, SMOKE),
        wait(60),
        ("question.wrong", "gate.failed"),
        {"rambles": True},
        from_ready=False,
    ),
    Scenario(
        "requests at once get one text",
        (LOADING, SMOKE),
        wait(60),
        ("text.crossed", "gate.failed"),
        {"crossed": True},
        from_ready=False,
    ),
    Scenario(
        "one of two idle engines wedged, the other busy",
        (LOADING, SMOKE, READY, NOT_READY, STALLED),
        idle_engine_wedged,
        ("progress.stalled",),
        from_ready=False,
    ),
    Scenario(
        "one of two engines idle for an hour",
        (LOADING, SMOKE, READY),
        one_engine_idle,
        (),
        from_ready=False,
    ),
    Scenario(
        "draft dies while serving",
        (READY, DEGRADED),
        draft_dies,
        ("speculation.not_drafting",),
    ),
    Scenario("requests of one token draft nothing", (READY,), one_token_requests, ()),
    Scenario(
        "sampler turns greedy while serving",
        OUT_BY_TEXT,
        turns_greedy,
        ("sampling.greedy",),
    ),
    Scenario(
        "NaN under traffic without end",
        OUT_BY_TEXT,
        nan_under_traffic,
        ("numerics.nan",),
    ),
    Scenario("acceptance 0", (READY, DEGRADED), acceptance((0, 0, 0, 0)), ("acceptance.low",)),
    Scenario(
        "acceptance 0, opted in",
        (READY, NOT_READY),
        acceptance((0, 0, 0, 0)),
        ("acceptance.low",),
        health={"acceptance_effect": "not-ready"},
    ),
    Scenario(
        "no key", (LOADING,), wait(60), ("config.unauthorized",), {"key": "k"}, from_ready=False
    ),
    Scenario(
        "redirect",
        (LOADING,),
        wait(60),
        ("start.waiting", "server.redirect"),
        {"redirect": True},
        from_ready=False,
    ),
    Scenario(
        "truncated JSON",
        (READY, NOT_READY),
        truncated,
        ("answer.malformed",),
    ),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_the_verdict_tells_the_story(scenario: Scenario) -> None:
    """Every fault leads through exactly the states and to the reasons that its row names."""
    with scripted_server(**scenario.server) as server:
        health = replace(Health(), **scenario.health)
        simulation = Simulation(server, health)
        if scenario.from_ready:
            simulation.to_ready()
            del simulation.seen[:-1]
        else:
            simulation.seen.append((simulation.now, LOADING))
        scenario.play(simulation)
        assert tuple(simulation.states()) == scenario.states, simulation.said
        if scenario.codes is not None:
            assert tuple(simulation.codes) == scenario.codes


def test_what_fails_at_once_is_found_as_soon_as_what_hangs() -> None:
    """No completion, too long a one or half a one: NOT_READY no later than without any."""

    def found_after(reply: tuple[int, bytes] | None) -> float:
        with scripted_server() as server:
            simulation = Simulation(server)
            simulation.to_ready()
            server.hung = reply is None
            if reply is not None:
                server.on_completion = lambda _: reply
            return simulation.run(1000, until=[NOT_READY])

    hang = found_after(None)
    assert hang < 150
    assert found_after(HUGE) <= hang
    assert found_after(HALF) <= hang


def test_garbage_that_comes_and_goes_keeps_a_server_out() -> None:
    """Four hours of a garbled answer in four: ready for less than a tenth of them, with few changes
    of state."""
    with scripted_server() as server:
        simulation = Simulation(server)
        simulation.to_ready()
        draw = random.Random(4)
        server.spoil["0"] = lambda choice: one_token(choice) if not draw.randrange(4) else None
        simulation.run(4 * 3600)
        served = {READY, DEGRADED}
        looks = zip(simulation.seen, simulation.seen[1:], strict=False)
        up = sum(later - at for (at, state), (later, _) in looks if state in served)
        assert up < 1440
        assert len(simulation.states()) <= 12


def test_a_name_that_is_gone_is_found_within_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a killed container's: NOT_READY with its reason, and READY when the name is back."""
    look_up, there = socket.getaddrinfo, [True]

    def resolve(host: str, *args: Any, **more: Any) -> Any:
        if host == "vllm.test" and not there[0]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up("127.0.0.1" if host == "vllm.test" else host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with scripted_server() as server:
        simulation = Simulation(server, host="vllm.test")
        simulation.to_ready()
        simulation.run(60)
        there[0] = False
        assert simulation.run(60, until=[NOT_READY]) < 10
        assert simulation.codes == ["server.unresolved"]
        simulation.run(600)
        assert simulation.state is NOT_READY
        there[0] = True
        simulation.run(60)
        assert simulation.state is READY


def test_a_key_that_is_changed_on_both_sides_is_used(tmp_path: Path) -> None:
    """DEGRADED while the file still holds the old one, READY at the first canary with the new."""
    path = tmp_path / "key"
    path.write_text("sk-first")
    with scripted_server(key="sk-first") as server:
        simulation = Simulation(server, key=settings.secret("--api-key-file", path))
        simulation.to_ready()
        server.key = "sk-second"
        simulation.run(250)
        assert (simulation.state, simulation.codes) == (DEGRADED, ["config.unauthorized"])
        path.write_text("sk-second")
        simulation.run(60)
        assert simulation.state is READY


def test_an_idle_server_is_asked_little() -> None:
    """An idle hour costs a canary of 8 tokens every 45 s or so, and five of 64."""
    with scripted_server() as server:
        simulation = Simulation(server)
        simulation.to_ready()
        del server.completions[:]
        simulation.run(3600)
        assert 55 <= len(server.completions) <= 100
        counts = Counter(c["max_tokens"] for c in server.completions)
        assert set(counts) == {8, 64} and counts[64] == 5


def test_every_prompt_is_one_of_its_kind() -> None:
    """No two generations share a prompt, so no prefix cache answers, but for the second seed."""
    with scripted_server() as server:
        simulation = Simulation(server)
        simulation.to_ready()
        simulation.run(600)
        prompts = [c["prompt"] for c in server.completions]
        assert len(prompts) > 10
        assert len(set(prompts)) == len(prompts) - 1


def test_probes_sample_as_users_do() -> None:
    """Temperature 1, top_p 1, no top_k, seeded, with logprobs and token ids, past the end token."""
    with scripted_server() as server:
        Simulation(server).to_ready()
        probe = server.completions[1]
        assert probe | {"prompt": "", "seed": 0} == {
            "model": "tiny",
            "prompt": "",
            "max_tokens": 64,
            "temperature": 1.0,
            "top_p": 1.0,
            "seed": 0,
            "logprobs": 1,
            "return_token_ids": True,
            "ignore_eos": True,
        }


def test_the_gate_also_samples_as_other_users_do() -> None:
    """Two requests at once, another temperature, top_p and top_k: what that needs is compiled before
    a client asks for it."""
    with scripted_server() as server:
        Simulation(server).to_ready()
        narrowed = [c for c in server.completions if "top_k" in c]
        settings = [(c["temperature"], c["top_p"], c["top_k"]) for c in narrowed]
        assert settings == [(0.6, 0.95, 40)] * 2
        assert [c["max_tokens"] for c in narrowed] == [32] * 2
        assert len({c["prompt"] for c in narrowed}) == len({c["seed"] for c in narrowed}) == 2


def test_the_likeliest_tokens_under_top_k_are_no_greedy_server() -> None:
    """At a low temperature from few tokens that may come out by chance; the gate passes."""
    with scripted_server() as server:

        def complete(payload: Mapping[str, Any]) -> Reply:
            server.greedy = "top_k" in payload
            return server.complete(payload)

        server.on_completion = complete
        Simulation(server).to_ready()


def test_a_server_that_does_not_speculate_passes_where_no_draft_is_expected() -> None:
    """Without speculation in the profile the draft counter is not asked for."""
    with scripted_server(speculates=False) as server:
        simulation = Simulation(server, speculates=False)
        simulation.to_ready()


def test_a_server_that_does_not_take_ranks_passes_by_its_counters_together() -> None:
    """Where a proxy drops the header, no engine is blamed for a draft that another one made."""
    with scripted_server(engines=eight(), takes_ranks=False) as server:
        simulation = Simulation(server)
        simulation.to_ready()
        assert server.engines["0"].generation_tokens and not server.engines["3"].generation_tokens


def test_a_generation_of_a_gone_engine_is_aborted() -> None:
    """A canary that hangs on an engine which was replaced is given up at once."""
    with scripted_server() as server:
        simulation = Simulation(server)
        simulation.to_ready()
        server.hung = True
        simulation.run(58)
        assert simulation.runner.running is not None
        server.restart()
        simulation.run(6)
        assert simulation.runner.aborted == 1


def test_the_gate_asks_ever_longer_prompts_and_several_at_once() -> None:
    """After the short prompts: some 1,500, 8,000 and 32,000 tokens, with 320 to come to the last,
    then four prompts of 64 tokens."""
    with scripted_server(max_model_len=65536) as server:
        Simulation(server).to_ready()
        long, at_once = server.completions[5:8], server.completions[8:]
        for completion_, wanted in zip(long, (1500, 8000, 32_000), strict=True):
            assert 0.85 * wanted <= tokens_of(completion_["prompt"]) <= wanted
        assert [c["max_tokens"] for c in long] == [64, 64, 320]
        assert [c["max_tokens"] for c in at_once] == [64] * 4
        assert len({c["prompt"] for c in at_once}) == len({c["seed"] for c in at_once}) == 4


def test_without_a_tokenizer_the_long_prompt_is_shorter() -> None:
    """Where /tokenize is not served the length is guessed, on the safe side, and past 2,048."""
    with scripted_server(tokenizes=False) as server:
        Simulation(server).to_ready()
        first, second, _ = (tokens_of(c["prompt"]) for c in server.completions[5:8])
        assert first <= 1500 and 2500 <= second <= 8000


def test_steps_of_the_gate_can_be_left_out() -> None:
    """No long_prompt_tokens and gate_requests 1 leave the short prompts."""
    with scripted_server(reads_tokens=0, crossed=True) as server:
        Simulation(server, Health(long_prompt_tokens=(), gate_requests=1)).to_ready()
        assert len(server.completions) == 5


def test_a_model_that_cannot_read_is_not_asked_for_the_needle() -> None:
    """`known_answers` false judges the long answer by everything else, and asks no sums."""
    with scripted_server(reads_tokens=0, rambles=True) as server:
        Simulation(server, Health(known_answers=False)).to_ready()
