"""The cause that the health service reads out of a server's log."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

from deploy.recipe import Health
from healthcheck.client import Client
from healthcheck.service.cause import PAUSE_S, Log
from healthcheck.service.loop import Loop
from healthcheck.service.provenance import Provenance
from healthcheck.verdict import Policy, State
from healthcheck.worker import STUCK_S, Repeated, Worker
from tests.support.scripted_server import MODEL, scripted_server
from tests.support.waiting import PATIENCE_S, until

HEAD = "(APIServer pid=1) INFO 11-29 13:02:36 [api_utils.py:273] non-default args: {}\n"
MISSING = (
    "(Worker pid=7) ERROR 11-29 15:00:00 [x.py:1] AttributeError: "
    "'DSparkDeepseekV4ForCausalLM' object has no attribute 'draft_id_to_target_id'\n"
)
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


def test_a_log_that_is_no_file_names_nothing_and_holds_up_nobody(tmp_path: Path) -> None:
    """A pipe without a writer, a device without end, a folder: nothing is read, at once."""
    pipe, device = tmp_path / "pipe", tmp_path / "device"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    for path in (pipe, device, tmp_path):
        assert Log(path).cause(State.DEAD, 0.0) is None


def test_a_log_that_becomes_a_pipe_holds_up_nobody(tmp_path: Path) -> None:
    """What was read before stays known no longer; the file that comes back is read again."""
    path = tmp_path / "server.log"
    path.write_text(HEAD, "utf-8")
    log = Log(path)
    assert log.startup(0.0) is not None
    path.rename(tmp_path / "moved")
    os.mkfifo(path)
    assert log.startup(PAUSE_S) is None
    path.unlink()
    path.write_text(HEAD, "utf-8")
    log.startup(2 * PAUSE_S)
    assert log.startup(3 * PAUSE_S) is not None


def test_a_disk_that_hangs_stops_no_turn(tmp_path: Path) -> None:
    """With the thread of the files held up the loop turns; it knows nothing of the log then, and
    names the cause when the disk is back."""
    path = tmp_path / "server.log"
    path.write_text(HEAD + MISSING, "utf-8")
    disk, worker = threading.Event(), Worker("files")
    worker.do(lambda: disk.wait(PATIENCE_S))
    now = [0.0]
    with scripted_server() as target:
        target.down()
        loop = Loop(
            Client(target.url),
            Policy(Health(), MODEL),
            clock=lambda: now[0],
            say=lambda _: None,
            log=Log(path, worker),
            provenance=Provenance(path, worker),
        )
        for turn in range(5):
            assert loop.turn(10.0 * turn).cause is None
        assert loop.snapshot.turns == 5
        disk.set()
        later = itertools.count(5)
        cause = until(lambda: loop.turn(10.0 * next(later)).cause)
    assert cause is not None and cause.id == "dspark.missing_d2t_attr"
    assert loop.snapshot.errors == {}
    worker.end()


def test_an_error_in_reading_the_log_is_counted_and_shown_and_stops_no_turn(
    tmp_path: Path,
) -> None:
    """What the log tells is an extra."""

    class Broken(Log):
        def startup(self, now: float) -> None:
            raise RecursionError("of the test")

    with scripted_server() as target:
        client = Client(target.url)
        log = Broken(tmp_path / "server.log")
        loop = Loop(client, Policy(Health(), MODEL), say=lambda _: None, log=log)
        errors = loop.snapshot.errors["log"]
        snapshot = loop.turn()
    assert snapshot.turns == 1
    assert snapshot.errors["log"] == errors + 1
    assert "service.error (log: RecursionError: of the test (" in snapshot.verdict.line


def test_what_is_read_again_and_again_rests_the_longer_the_more_it_works() -> None:
    """A look that took a twentieth of a second is not followed by one within nine times that."""
    calls = 0
    worker = Worker("of the test")

    def work() -> int:
        nonlocal calls
        calls += 1
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        return calls

    looks = Repeated(work, 0, worker=worker)
    assert looks.latest(0.0) == 0
    worker.do(lambda: None).result(PATIENCE_S)
    assert looks.latest(0.0) == looks.latest(0.4) == 1
    assert looks.latest(60.0) == 1
    worker.do(lambda: None).result(PATIENCE_S)
    assert looks.latest(60.0) == calls == 2
    worker.end()


def test_what_hangs_for_long_tells_nothing() -> None:
    """The last result holds for a while and not for ever."""
    release, worker = threading.Event(), Worker("of the test")
    answers = iter([lambda: 7, lambda: release.wait(PATIENCE_S)])
    looks: Repeated[int] = Repeated(lambda: int(next(answers)()), 0, worker=worker)
    looks.latest(0.0)
    worker.do(lambda: None).result(PATIENCE_S)
    assert looks.latest(1.0) == looks.latest(1.0 + STUCK_S / 2) == 7
    assert looks.latest(2.0 + 2 * STUCK_S) == 0
    release.set()
    worker.end()
