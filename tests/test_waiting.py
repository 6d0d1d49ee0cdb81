"""How the tests wait: every not-yet is one, and what never comes fails with what was seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import requests

from tests.conftest import LONGEST
from tests.support.waiting import until

HERE = Path(__file__).parent


def test_nothing_that_is_not_there_yet_is_an_answer() -> None:
    """A refused connection, a body or a file that is cut, an end, an empty list, a false answer."""
    cut = json.JSONDecodeError("cut", "{", 1)
    late: list[object] = [
        *(ConnectionRefusedError(), requests.ReadTimeout(), cut, EOFError(), IndexError()),
        *(0, "", None, "there"),
    ]

    def look() -> object:
        seen = late.pop(0)
        if isinstance(seen, Exception):
            raise seen
        return seen

    assert until(look, pause_s=0.0) == "there"
    assert late == []


def test_what_never_comes_fails_with_what_was_seen_last() -> None:
    """It is looked at once at least, however little time there is; the reason is told with it."""
    with pytest.raises(AssertionError, match=r"waited 0 s; last seen: 503 the server's log"):
        until(
            lambda: 503,
            good=lambda status: status == 200,
            within_s=0,
            why=lambda: "the server's log",
        )
    with pytest.raises(AssertionError, match=r"last seen: EOFError\('cut'\)"):
        until(lambda: (_ for _ in ()).throw(EOFError("cut")), within_s=0)


def test_a_failed_assertion_ends_the_wait() -> None:
    """A server that has ended is told at once."""

    def look() -> bool:
        raise AssertionError("it ended with 1")

    with pytest.raises(AssertionError, match="it ended with 1"):
        until(look)


def test_the_files_that_are_waited_for_longest_are_there() -> None:
    """They come first in a run; one that was renamed would come anywhere."""
    assert [name for name in LONGEST if not (HERE / name).exists()] == []
