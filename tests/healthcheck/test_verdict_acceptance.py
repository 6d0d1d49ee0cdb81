"""Acceptance and drafting of real traffic, as far as the state machine goes by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from healthcheck.client.exposition import Exposition, Speculation
from healthcheck.judge import Finding
from healthcheck.verdict import State
from tests.support.verdict_machine import NAN, OK, metrics, ready, sample


def drafting(rates: tuple[float, ...], drafts: int = 200) -> Callable[[int], Exposition]:
    """Scrapes of a server with real traffic, accepted at the given rates per draft."""

    def at(turn: int) -> Exposition:
        total = turn * drafts
        spec = Speculation(
            total, total * 4, sum(r * total for r in rates), tuple(r * total for r in rates)
        )
        return metrics(sample(tokens=turn, running=1, spec=spec))

    return at


@pytest.mark.parametrize(
    ("rates", "code"),
    [
        ((0.0, 0.0, 0.0, 0.0), "acceptance.low"),
        ((0.015, 0.0, 0.0, 0.0), "acceptance.low"),
        ((0.8, 0.0, 0.0, 0.0), "acceptance.collapsed"),
        ((1.0, 1.0, 1.0, 1.0), "acceptance.high"),
    ],
)
def test_acceptance_out_of_its_band_degrades(rates: tuple[float, ...], code: str) -> None:
    """Three bad windows of real traffic are DEGRADED, never NOT_READY by default."""
    machine = ready()
    scrape = drafting(rates)
    for turn in range(1, 20):
        machine.see(OK, metrics=scrape(turn))
        assert machine.memory.state in (State.READY, State.DEGRADED)
    assert machine.memory.state is State.DEGRADED
    assert code in machine.codes


@pytest.mark.parametrize("rates", [(0.73, 0.5, 0.4, 0.3), (0.27, 0.1, 0.05, 0.02)])
def test_healthy_acceptance_is_ready(rates: tuple[float, ...]) -> None:
    """The published healthy range raises nothing."""
    machine = ready()
    scrape = drafting(rates)
    for turn in range(1, 40):
        assert machine.see(OK, metrics=scrape(turn)) is State.READY


def test_few_drafts_are_never_bad() -> None:
    """Not one draft accepted, but under a full window: no verdict on acceptance."""
    machine = ready()
    scrape = drafting((0.0, 0.0, 0.0, 0.0), drafts=4)
    for turn in range(1, 30):
        assert machine.see(OK, metrics=scrape(turn)) is State.READY


def test_low_acceptance_is_not_ready_if_opted_in() -> None:
    """With acceptance_effect not-ready the same windows take the server out of service."""
    machine = ready(acceptance_effect="not-ready")
    scrape = drafting((0.01, 0.0, 0.0, 0.0))
    for turn in range(1, 10):
        machine.see(OK, metrics=scrape(turn))
    assert machine.memory.state is State.NOT_READY
    assert machine.codes[0] == "acceptance.low"
    want = machine.wanted()
    assert want is not None and want.tokens == 64


@pytest.mark.parametrize("when", ["running", "over", "just over"])
def test_no_draft_of_a_generation_of_our_own_is_traffic(when: str) -> None:
    """Neither while it runs, nor in the scrape that sees its end, nor in one that came too late."""
    machine = ready()
    scrape = drafting((0.0, 0.0, 0.0, 0.0))
    machine.see(OK, metrics=scrape(1))
    before = machine.memory.engines["0"].window
    running = machine.outstanding(machine.now)
    if when == "running":
        machine.see(OK, metrics=scrape(2), outstanding=running)
    elif when == "over":
        machine.see(OK, metrics=scrape(2), generation=machine.generation())
    else:
        machine.see(OK, outstanding=running)
        machine.see(OK, metrics=scrape(2))
    assert machine.memory.engines["0"].window == before
    assert machine.memory.engines["0"].windows == ()
    for turn in (3, 4):
        machine.see(OK, metrics=scrape(turn))
    assert machine.memory.engines["0"].windows


@pytest.mark.parametrize(
    ("effect", "out_by", "windows"),
    [("not-ready", NAN, 1), ("not-ready", None, 0), ("degraded", NAN, 0)],
)
def test_our_own_drafts_count_where_they_are_all_there_is(
    effect: str, out_by: tuple[Finding, ...] | None, windows: int
) -> None:
    """A server out of rotation gets no traffic: if acceptance can keep it there, our own counts."""
    machine = ready(acceptance_effect=effect)
    scrape = drafting((0.7, 0.5, 0.4, 0.3))
    machine.see(OK, metrics=scrape(1), generation=machine.generation())
    for _ in range(3 if out_by else 0):
        machine.see(OK, metrics=scrape(1), generation=machine.generation(NAN))
    assert machine.memory.state is (State.NOT_READY if out_by else State.READY)
    machine.see(OK, metrics=scrape(2), generation=machine.generation(NAN))
    assert len(machine.memory.engines["0"].windows) == windows


def decoding(
    decoded: float, drafts: float = 9.0, prefills: float | None = 100.0, running: float = 1.0
) -> Exposition:
    """A scrape of a server that has decoded so much, beside the first tokens of its prefills."""
    tokens = decoded + (prefills or 0.0)
    spec = Speculation(drafts, drafts * 4, drafts, (drafts, 0.0))
    return metrics(replace(sample(tokens, running, spec=spec), first_tokens=prefills))


@pytest.mark.parametrize(("step", "readings"), [(128.0, 3), (127.0, 6), (50.0, 9)])
def test_a_draft_that_died_is_seen_by_what_is_decoded_without_it(
    step: float, readings: int
) -> None:
    """Three windows of decoded tokens and no draft: DEGRADED, however they come in."""
    machine = ready()
    machine.see(OK, metrics=decoding(0.0))
    states = [machine.see(OK, metrics=decoding(step * turn)) for turn in range(1, readings + 1)]
    assert states == [State.READY] * (readings - 1) + [State.DEGRADED]
    assert [str(n) for n in machine.memory.notes] == ["speculation.not_drafting (engine 0)"]


def test_one_draft_begins_the_count_of_tokens_without_one_again() -> None:
    """Up to a window may be decoded between two drafts, over and over."""
    machine = ready()
    for turn in range(40):
        drafts = 9.0 + turn // 2
        assert machine.see(OK, metrics=decoding(100.0 * turn, drafts)) is State.READY
        assert machine.memory.engines["0"].undrafted == (100.0 if turn % 2 else 0.0)


def test_a_draft_that_lives_again_is_ready() -> None:
    """Two readings with a new draft end the alarm; one does not."""
    machine = ready()
    for turn in range(5):
        machine.see(OK, metrics=decoding(200.0 * turn))
    assert machine.memory.state is State.DEGRADED
    assert machine.see(OK, metrics=decoding(1000.0, drafts=10.0)) is State.DEGRADED
    assert machine.see(OK, metrics=decoding(1010.0, drafts=11.0)) is State.READY


def test_an_idle_server_needs_no_draft() -> None:
    """However often it is looked at, nothing decoded is nothing undrafted."""
    machine = ready()
    for _ in range(500):
        seen = decoding(1000.0, running=0.0)
        assert machine.see(OK, metrics=seen, generation=machine.generation()) is State.READY


def test_tokens_of_prefills_need_no_draft() -> None:
    """Requests of one token each are answered by their prefills alone."""
    machine = ready()
    for turn in range(60):
        seen = decoding(0.0, prefills=100.0 + 500.0 * turn)
        assert machine.see(OK, metrics=seen) is State.READY


@pytest.mark.parametrize("shown", [(None, None), (None, 100.0), (100.0, None)])
def test_without_the_count_of_prefills_drafting_is_not_judged(
    shown: tuple[float | None, float | None],
) -> None:
    """An older server does not say which tokens were decoded, so none is held against it."""
    machine = ready()
    for turn in range(20):
        seen = decoding(1000.0 * (turn + 1), prefills=shown[turn % 2])
        assert machine.see(OK, metrics=seen) is not State.DEGRADED


def test_a_window_is_full_with_its_last_draft() -> None:
    """acceptance_window_drafts drafts are a window, one less is none."""
    machine = ready()
    scrape = drafting((0.7, 0.5), drafts=127)
    machine.see(OK, metrics=scrape(0))
    machine.see(OK, metrics=scrape(1))
    assert machine.memory.engines["0"].windows == ()
    machine.see(OK, metrics=drafting((0.7, 0.5), drafts=254)(1))
    assert [w.drafts for w in machine.memory.engines["0"].windows] == [254]
    assert machine.memory.engines["0"].window == Speculation()
    full = ready()
    scrape = drafting((0.5, 0.25), drafts=128)
    full.see(OK, metrics=scrape(0))
    full.see(OK, metrics=scrape(1))
    assert full.memory.engines["0"].windows == (Speculation(128, 512, 96, (64, 32)),)
    assert full.memory.engines["0"].window == Speculation()
