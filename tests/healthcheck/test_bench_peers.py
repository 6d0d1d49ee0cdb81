"""The emulated probes of other projects do what their documents say, on a scripted server."""

from __future__ import annotations

import pytest

from tests.bench.peers import (
    COUNTERS_BUDGET_S,
    DYNAMO_IDLE_S,
    DYNAMO_TIMEOUT_S,
    SGLANG_TIMEOUT_S,
    CounterProgress,
    GreedyProbe,
    IdleCanary,
    Peer,
    RealView,
    ScriptedView,
    VllmHealth,
    peers,
)
from tests.bench.side_by_side import (
    OURS,
    SCRIPTS,
    Case,
    Scripted,
    compile_stall,
    idle,
    lone_prefill,
    make_greedy,
    scripted,
)
from tests.support.scripted_server import MODEL, ScriptedServer, scripted_server
from tests.support.waiting import until


def first_bad(peer: Peer, server: ScriptedServer, seconds: int) -> int | None:
    view = ScriptedView(server)
    return next((s for s in range(seconds) if not peer.turn(float(s), view)), None)


@pytest.mark.parametrize("peer", peers(), ids=lambda p: p.name)
def test_a_healthy_idle_server_passes(peer: Peer) -> None:
    """None of them says anything against a server that answers."""
    with scripted_server() as server:
        assert first_bad(peer, server, 600) is None


@pytest.mark.parametrize(
    ("peer", "found"),
    [
        (VllmHealth(), None),
        (GreedyProbe(), SGLANG_TIMEOUT_S),
        (IdleCanary(), DYNAMO_IDLE_S + DYNAMO_TIMEOUT_S),
        (CounterProgress(), None),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_wedge_while_idle(peer: Peer, found: float | None) -> None:
    """Those that generate find it after their time-outs; the others never do."""
    with scripted_server(hung=True) as server:
        assert first_bad(peer, server, 600) == found


def test_a_wedge_under_work_shows_in_the_counters() -> None:
    """Counter progress needs work that does not get on, and its budget."""
    with scripted_server() as server:
        server.engines["0"].running = 2
        assert first_bad(CounterProgress(), server, 600) == COUNTERS_BUDGET_S


def test_output_of_others_passes_the_greedy_probe() -> None:
    """Any token that comes out after the question passes it, though its own answer waits."""
    with scripted_server(hung=True) as server:
        peer, view = GreedyProbe(), ScriptedView(server)
        for second in range(120):
            server.engines["0"].generation_tokens += 1
            assert peer.turn(float(second), view)


def test_an_engine_said_dead_fails_vllm_health() -> None:
    """/health 503 is what it sees."""
    with scripted_server(health=(503, b"")) as server:
        assert first_bad(VllmHealth(), server, 5) == 0


def test_a_real_view_asks_over_http() -> None:
    """Against a server over HTTP the same probes see status, counters and a greedy answer."""
    with scripted_server() as server:
        server.on_completion = lambda _: (200, b"{}")
        view = RealView(server.url, MODEL)
        assert view.health() == 200
        counts = view.counts()
        assert counts is not None
        assert not counts.work
        asked = view.ask()
        until(lambda: asked.answered() is not None)
        assert asked.answered() is True
        assert server.completions[0]["temperature"] == 0
        assert server.completions[0]["max_tokens"] == 1
        server.down()
        assert view.health() is None
        assert view.counts() is None


def test_greedy_from_the_start_is_refused_by_us_alone() -> None:
    """A sampler that is argmax passes every other probe and never our gate."""
    case = scripted(Scripted("greedy", True, make_greedy, from_start=True, seconds=120))
    assert all(case.said[p.name] is None for p in peers())
    assert "sampling.greedy" in case.refused[OURS]


@pytest.mark.parametrize(
    ("step", "seconds", "alarmed"),
    [
        (
            lone_prefill,
            1100.0,
            {"greedy probe (SGLang)", "idle canary (Dynamo)", "counter progress"},
        ),
        (compile_stall, 300.0, {"greedy probe (SGLang)", "idle canary (Dynamo)"}),
        (idle, 300.0, set()),
    ],
)
def test_false_alarms(step, seconds, alarmed) -> None:  # type: ignore[no-untyped-def]
    """What is no fault alarms those that ask behind it, and not this service."""
    case = scripted(Scripted("no fault", False, lambda _: None, step, seconds=seconds))
    assert {name for name, at in case.said.items() if at is not None} == alarmed
    assert case.said[OURS] is None


def test_cells_say_what_was_seen() -> None:
    """A fault found, missed or refused, an alarm that is false, and a judge that was not there."""
    fault = Case("f", "real", True, {"a": 3.21, "b": None}, {"c": "SMOKE"})
    assert [fault.cell(j)[0] for j in "abcd"] == ["3.2 s", "missed", "refused at start", "-"]
    fine = Case("n", "real", False, {"a": 20.0, "b": None})
    assert [fine.cell(j) for j in "ab"] == [("false, 20 s", "bad"), ("quiet", "good")]


def test_scripts_have_names_of_their_own() -> None:
    """Rows of the table can be told apart."""
    assert len({s.name for s in SCRIPTS}) == len(SCRIPTS)
