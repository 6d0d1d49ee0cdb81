"""What costs much and is the same for all tests of a run: made by whoever needs it first."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from typing import Any

import pytest


def once(session: pytest.TempPathFactory, name: str, make: Callable[[], Any]) -> Any:
    """What `make` gives, which is JSON; the workers of one run share it and wait for it."""
    folder = session.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # that of the whole run
    made = folder / f"{name}.json"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            made.write_text(json.dumps(make()), encoding="utf-8")
        return json.loads(made.read_text(encoding="utf-8"))
