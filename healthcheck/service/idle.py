"""Waits until a server has nothing to do: what goes before its stop, so that no answer is cut off.

Whoever sends requests must have been told to send them elsewhere. Kubernetes removes the endpoint
of a pod that ends while its preStop hook runs, and proxies hear of it some seconds later, so a time
goes by in any case; afterwards the server's own counters say when the last answer is out.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from healthcheck.client import Client, exposition
from healthcheck.client.answers import Failure
from healthcheck.client.exposition import Exposition

POLL_S = 1.0
ASK_S = 5.0
# A request that is being read, or tokenized, is in no counter yet.
LOOKS = 2

IDLE, BUSY, UNKNOWN = 0, 1, 2


def wait(
    server: Client,
    beside: Client,
    *,
    at_least_s: float,
    budget_s: float,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[int, str]:
    """Until no request runs or waits, `budget_s` at most: IDLE, BUSY or UNKNOWN, and a line why.

    There is nothing to wait for where the port is closed, or where the health service `beside` says
    that the engine makes no step. `say` gets a line for each change of what is under way.
    """
    began, free, told = clock(), 0, ""
    while True:
        seen = exposition.read(
            server.get("/metrics", deadline_s=ASK_S, limit_bytes=exposition.LIMIT_BYTES)
        )
        if isinstance(seen, Failure) and seen.closed:
            return IDLE, "idle: no server is there"
        lives = beside.get("/livez/engine", deadline_s=ASK_S, limit_bytes=exposition.LIMIT_BYTES)
        if not isinstance(lives, Failure) and lives.status == 503:
            return BUSY, f"given up: {lives.text.strip()[:200]}"
        work, line = _work(seen)
        free = free + 1 if work == 0 else 0
        spent = clock() - began
        if free >= LOOKS and spent >= at_least_s:
            return IDLE, f"idle: after {spent:.0f} s"
        if spent >= budget_s:
            return (UNKNOWN if work is None else BUSY), f"given up after {spent:.0f} s: {line}"
        if line != told:
            say(f"waiting: {line}")
            told = line
        sleep(POLL_S)


def _work(seen: Exposition | Failure) -> tuple[float | None, str]:
    """How many requests are under way, None where that is not told, and both in words."""
    if isinstance(seen, Failure):
        return None, f"/metrics tells nothing ({seen.detail})"
    if not seen.engines:
        return None, "/metrics shows no engine"
    running = sum(e.running for e in seen.engines)
    waiting = sum(e.waiting for e in seen.engines)
    return running + waiting, f"{running:.0f} running, {waiting:.0f} waiting"
