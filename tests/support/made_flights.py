"""What the health service tells of a stuck server, without a server and without a loop."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from healthcheck.reasons import Note
from healthcheck.service.snapshot import Snapshot
from healthcheck.service.teller import Teller
from healthcheck.verdict import SURFACES, State, Transition, Verdict, begin
from healthcheck.worker import Worker
from tests.support.waiting import PATIENCE_S


def snapshot(state: State, *codes: str, at: float | None = None) -> Snapshot:
    """The verdict at a moment, of a service that has seen one change."""
    now = time.monotonic() if at is None else at
    notes = tuple(Note(code, "61 s") for code in codes)
    memory = replace(begin(now), timeline=(Transition(now - 5, state, codes[0] if codes else ""),))
    return Snapshot(memory, Verdict(state, notes, SURFACES[state], None), now, 1)


def tell(log: Path, state: State = State.NOT_READY, code: str = "progress.none") -> None:
    """The health service's file, as it writes it."""
    said: list[str] = []
    worker = Worker("told")
    Teller(log, lambda: snapshot(state, code), worker, said.append).turn()
    worker.do(lambda: None).result(PATIENCE_S)
    assert said == []
