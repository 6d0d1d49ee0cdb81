"""Waiting in tests: until something is so, whatever is said before, on a machine however busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

# Below the suite's own deadline of a test, and many times what anything here takes: at a load of 16
# on two cores a second takes eight and more.
PATIENCE_S = 300.0
# What a port, a file or a body says that is not there yet, or not all of it: JSON that is cut is a
# ValueError, every error of requests and of urllib an OSError.
NOT_YET = (OSError, ValueError, EOFError, LookupError)


def until(
    look: Callable[[], T],
    *,
    good: Callable[[T], object] = bool,
    within_s: float = PATIENCE_S,
    pause_s: float = 0.05,
    why: Callable[[], Any] = lambda: "",
) -> T:
    """What `look` returns once it is good; fails with the last of it, and `why`, after `within_s`.

    One of NOT_YET raised by `look` is no answer; any other error, a failed assertion among them,
    ends the wait. It looks once more after the time is over, for it may have slept beyond it.
    """
    ends = time.monotonic() + within_s
    while True:
        last = time.monotonic() >= ends
        seen: object
        try:
            answer = look()
        except NOT_YET as e:
            seen = e
        else:
            if good(answer):
                return answer
            seen = answer
        assert not last, f"waited {within_s:g} s; last seen: {seen!r} {why()}"
        time.sleep(pause_s)
