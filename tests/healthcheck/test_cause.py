"""The cause that the health service reads out of a server's log."""

from __future__ import annotations

import os
import time
from pathlib import Path

from healthcheck.cause import PAUSE_S, Log
from healthcheck.verdict import State

HEAD = "(APIServer pid=1) INFO 11-29 13:02:36 [api_utils.py:273] non-default args: {}\n"
BATON = (
    "(Worker_TP0 pid=9) INFO 11-29 13:02:40 [core.py:1] "
    "[aiter] waiting for baton release at /cache/aiter/build/lock_module_moe_sorting\n"
)


def age(path: Path, seconds: float) -> None:
    """Let the file have been written this long ago."""
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_a_wait_told_once_becomes_the_cause_by_its_silence(tmp_path: Path) -> None:
    """AITER names a lock once and is silent; the unchanged log's age makes the wait overdue."""
    path = tmp_path / "server.log"
    path.write_text(HEAD + BATON, "utf-8")
    log = Log(path)
    assert log.cause(State.LOADING, 0.0) is None
    age(path, 3600)
    log.cause(State.LOADING, PAUSE_S)  # the new time stamp makes it read the log again
    found = log.cause(State.LOADING, 2 * PAUSE_S)
    assert found is not None
    assert found.id == "aiter.baton_wait"
    assert "lock_module_moe_sorting" in found.remedy


def test_a_log_that_goes_on_has_no_cause(tmp_path: Path) -> None:
    """A quiet minute in a start is no fault."""
    path = tmp_path / "server.log"
    path.write_text(HEAD + BATON, "utf-8")
    age(path, 60)
    assert Log(path).cause(State.LOADING, 0.0) is None


def test_a_missing_log_names_nothing(tmp_path: Path) -> None:
    """No file, no cause, no error."""
    assert Log(tmp_path / "none.log").cause(State.DEAD, 0.0) is None


KILLED = """\
(APIServer pid=1) INFO 11-29 13:03:00 [api_server.py:1] Starting vLLM server on http://0.0.0.0:8000
(APIServer pid=1) INFO:     Application startup complete.
(APIServer pid=1) WARNING 11-29 13:09:00 [core_client.py:725] [shutdown] MPClient: engine core \
exited unexpectedly; starting cleanup
(APIServer pid=1) ERROR 11-29 13:09:00 [async_llm.py:724] AsyncLLM output_handler failed.
(APIServer pid=1) ERROR 11-29 13:09:00 [async_llm.py:724] Traceback (most recent call last):
(APIServer pid=1) ERROR 11-29 13:09:00 [async_llm.py:724]   File "async_llm.py", line 680, in handle
(APIServer pid=1) ERROR 11-29 13:09:00 [async_llm.py:724] vllm.v1.engine.exceptions.EngineDeadError: \
EngineCore encountered an issue. See stack trace (above) for the root cause.
(APIServer pid=1) INFO:     "GET /health HTTP/1.1" 503 Service Unavailable
"""


def test_an_engine_killed_from_outside_is_told_by_its_consequences(tmp_path: Path) -> None:
    """A kill leaves no line of its own: the wrappers are named, and where to look for the rest."""
    path = tmp_path / "server.log"
    path.write_text(HEAD + KILLED, "utf-8")
    found = Log(path).cause(State.DEAD, 0.0)
    assert found is not None
    assert found.id == "engine.exited"
    assert "dmesg" in found.remedy
    assert "cause not in this log" in found.headline
