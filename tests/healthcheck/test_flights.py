"""The flight recorder: what the health service tells, what the server's parent keeps of it."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deploy.redaction import Redaction
from healthcheck.client.exposition import EngineSample, Speculation
from healthcheck.flights import lines, main, model, recorder, stacks, told, waits
from healthcheck.flights.beside import beside
from healthcheck.flights.model import Frame, Stack, Thread
from healthcheck.flights.newest import Flights
from healthcheck.flights.recorder import Recorder
from healthcheck.service import page, report
from healthcheck.service.teller import COLUMNS, MOST_READINGS, Teller, is_stuck
from healthcheck.signs.file import boot
from healthcheck.signs.model import Process, Signs
from healthcheck.verdict import EngineMemory, State
from healthcheck.worker import Worker
from tests.support import tools
from tests.support.made_flights import snapshot, tell
from tests.support.waiting import PATIENCE_S, until

KEY = "a-key-of-the-test-0123456789"
PROMPT = "the secret of the old lighthouse"
NOTHING = Redaction(())


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The server's log in a folder of its own."""
    path = tmp_path / "log" / "server.log"
    path.parent.mkdir()
    path.write_text("INFO the engine is up\n")
    return path


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No limit of time is met on a busy machine, but where a test sets its own."""
    for module, name in (
        *((recorder, name) for name in ("HOLD_S", "END_S", "QUIET_S")),
        *((stacks, name) for name in ("PLAIN_S", "NATIVE_S", "NATIVE_TOGETHER_S")),
    ):
        monkeypatch.setattr(module, name, PATIENCE_S)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> None:
    """py-spy is found, wherever it is installed here."""
    path = f"{Path(tools.find('py-spy')).parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)


@contextlib.contextmanager
def running(code: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python that has said that it has begun, and is killed at the end."""
    command = [sys.executable, "-u", "-c", code, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        try:
            yield process
        finally:
            process.kill()


HANGS = f"""
import time
def answer(prompt):
    print("up"); time.sleep(1000)
answer({PROMPT!r})
"""


def signs_of(*processes: tuple[str, int]) -> tuple[Signs, ...]:
    """One look at processes of these names and ids."""
    shown = tuple(Process(name, pid, "S", 0.0, None, 1.0, 1, 1) for name, pid in processes)
    return (Signs(time.monotonic(), 0.0, boot(), shown),)


@contextlib.contextmanager
def recorded(
    process: subprocess.Popen[bytes], log: Path, name: str = "EngineCore"
) -> Iterator[Recorder]:
    """A recorder over a process, ended at the end."""
    made = Recorder(process, log, lambda: signs_of((name, process.pid)), {"VLLM_API_KEY": KEY})
    made.start()
    try:
        yield made
    finally:
        made.end()


def archives(log: Path) -> list[model.Flight]:
    """What is kept beside a log."""
    return model.listed(log.with_name("flights"))


# --- what the health service tells


def test_a_want_of_progress_is_told_and_its_end_takes_the_file_away(log: Path) -> None:
    """The file is there from NOT_READY on, is another at STALLED, stays while the service drains,
    and goes with READY."""
    told.make_folder(log)
    file, worker = log.with_name("told") / "stuck.json", Worker("told")
    seen = [snapshot(State.READY)]
    teller = Teller(log, lambda: seen[0], worker, pytest.fail)

    def turn(state: State, *codes: str) -> told.Stuck | None:
        seen[0] = snapshot(state, *codes)
        teller.turn()
        worker.do(lambda: None).result(PATIENCE_S)
        return told.read(file)

    assert turn(State.READY) is None
    first = turn(State.NOT_READY, "progress.none")
    assert first is not None
    assert (first.state, first.code) == ("NOT_READY", "progress.none")
    assert first.content["timeline"] == [[5.0, "NOT_READY", "progress.none"]]
    assert turn(State.NOT_READY, "progress.none") == first
    last = turn(State.STALLED, "progress.stalled")
    assert last is not None
    assert last.state == "STALLED"
    assert turn(State.DRAINING, "operator.drain") == last
    assert turn(State.READY) is None


def test_readings_are_of_ten_minutes_and_bounded(log: Path) -> None:
    """Of sixteen busy engines the newest are told, in a file that the parent still reads."""
    told.make_folder(log)
    seen, worker = snapshot(State.READY, at=0.0), Worker("told")
    teller = Teller(log, lambda: seen, worker, pytest.fail)
    for second in range(0, 1000, 2):
        state = State.NOT_READY if second == 998 else State.READY
        seen = snapshot(state, "progress.none", at=float(second))
        sample = EngineSample("0", 1e15 / 3, 1e15 / 3, 1e3, 1e3, 1 / 3, Speculation(1e15 / 3))
        engines = {str(n): EngineMemory(sample, 0.0) for n in range(16)}
        seen = replace(seen, memory=replace(seen.memory, engines=engines))
        teller.turn()
    worker.do(lambda: None).result(PATIENCE_S)
    stuck = told.read(told.file(log))
    assert stuck is not None
    rows = stuck.content["readings"]
    assert rows[-1][:3] == [0.0, "NOT_READY", "15"]
    assert 590 <= rows[0][0] <= model.KEPT_S
    assert len(rows) <= MOST_READINGS


@pytest.mark.parametrize(
    ("state", "codes"),
    [
        (State.NOT_READY, ("numerics.nan",)),
        (State.NOT_READY, ("server.timeout",)),
        (State.NOT_READY, ("recovery.pending", "progress.none")),
        (State.DEGRADED, ("process.died",)),
        (State.LOADING, ("process.died",)),
    ],
)
def test_only_a_want_of_progress_asks_for_stacks(state: State, codes: tuple[str, ...]) -> None:
    """Bad texts, a port that does not answer, a recovery and a start ask for none."""
    assert not is_stuck(snapshot(state, *codes))
    assert is_stuck(snapshot(State.NOT_READY, "process.stopped", *codes[:0]))


@pytest.mark.parametrize("what", ["no folder", "a file for a folder", "read only"])
def test_a_volume_that_cannot_be_written_is_said_once(log: Path, what: str) -> None:
    """One line, however often the verdict changes, and the loop goes on."""
    if what == "a file for a folder":
        log.with_name("told").write_text("")
    if what == "read only":
        told.make_folder(log)
        (log.with_name("told") / ".stuck.json").mkdir()  # as root may write anywhere
    said: list[str] = []
    worker = Worker("told")
    seen = [snapshot(State.READY)]
    teller = Teller(log, lambda: seen[0], worker, said.append)
    for _ in range(3):
        for state, code in ((State.NOT_READY, "progress.none"), (State.READY, "")):
            seen[0] = snapshot(state, *([code] if code else []))
            teller.turn()
            worker.do(lambda: None).result(PATIENCE_S)
    assert len(said) == 1
    assert f"{log.with_name('told')}" in said[0]


@pytest.mark.parametrize(
    "change",
    [
        {"state": "READY"},
        {"boot": "another"},
        {"schema": 2},
        {"at": "now"},
        {"reasons": []},
        {"reasons": [["../../etc/passwd", ""]]},
        {"more": 1},
        {"timeline": [[["deep", [["deeper"]]]]]},
        {"columns": ["x" * 400]},
        {"columns": ["\x1b[2J"]},
    ],
    ids=str,
)
def test_what_the_service_would_not_have_written_is_not_read(
    log: Path, change: dict[str, Any]
) -> None:
    """The folder is open to a user who is not the parent's: nothing of it is trusted."""
    told.make_folder(log)
    tell(log)
    file = log.with_name("told") / "stuck.json"
    assert told.read(file) is not None
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert told.read(file) is None


def test_a_link_or_a_flood_is_not_read(log: Path, tmp_path: Path) -> None:
    """A link to another file, and one of megabytes, are no word of the service."""
    told.make_folder(log)
    tell(log)
    file = log.with_name("told") / "stuck.json"
    moved = tmp_path / "moved"
    file.rename(moved)
    file.symlink_to(moved)
    assert told.read(file) is None
    file.unlink()
    file.write_bytes(moved.read_bytes() + b" " * told.LIMIT_BYTES)
    assert told.read(file) is None


def test_the_folder_is_open_and_sticky(log: Path) -> None:
    """Another user may put a file there, and take away only his own; of the archives, nothing."""
    with running(HANGS) as process, recorded(process, log):
        assert log.with_name("told").stat().st_mode & 0o7777 == 0o1777
        assert log.with_name("flights").stat().st_mode & 0o022 == 0


# --- what is recorded


def test_a_stuck_server_is_recorded_whole(log: Path, spy: None) -> None:
    """The archive has the stack, the signs, the timeline, the readings and the log's end."""
    with running(HANGS) as process, recorded(process, log):
        tell(log)
        one = until(lambda: archives(log))[0]
        assert (one.why, one.code) == ("NOT_READY", "progress.none")
        assert abs((datetime.now(UTC) - one.at).total_seconds()) < 600
        assert one.path.stat().st_mode & 0o777 == 0o644
        content = model.load(one.path)
        stack = model.stacks(content)[0]
        assert (stack.name, stack.pid, stack.native) == ("EngineCore", process.pid, True)
        assert "answer" in [frame.function for frame in stack.threads[0].frames]
        assert content["verdict"]["timeline"][0][1:] == ["NOT_READY", "progress.none"]
        assert content["verdict"]["columns"] == list(COLUMNS)
        assert content["signs"][0]["processes"][0]["name"] == "EngineCore"
        assert content["log"]["lines"] == ["INFO the engine is up"]


def test_no_prompt_and_no_key_gets_into_it(log: Path, spy: None) -> None:
    """Neither from the stack's variables nor from the log."""
    log.write_text(
        f"DEBUG Request cmpl-1 details: prompt: {PROMPT!r}, prompt_token_ids: [1, 2]\n"
        f"INFO Received request cmpl-1: params: SamplingParams(stop=[{PROMPT!r}]).\n"
        f"INFO Generated response cmpl-1: output: {PROMPT!r}, output_token_ids: [3]\n"
        f"ERROR Dumping scheduler output for model execution: {PROMPT}\n"
        f"ERROR validation: [type=string, input_value={PROMPT!r}, input_type=str]\n"
        f'ERROR body {{"messages": [{{"content": "{PROMPT}"}}]}}\n'
        f"ERROR it is '{PROMPT}{' and again ' * 9}'\n"
        f"INFO non-default args: {{'api_key': ['{KEY[:12]}x'], 'port': 8000}}\n"
        f"INFO the key is {KEY}\n"
    )
    with running(HANGS) as process, recorded(process, log):
        tell(log)
        raw = gzip.decompress(until(lambda: archives(log))[0].path.read_bytes()).decode()
    assert PROMPT not in raw
    assert KEY[:12] not in raw
    kept = json.loads(raw)["log"]["lines"]
    assert len(kept) == 9
    assert "'port': 8000" in kept[7]


def test_the_last_five_are_kept(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest make room, and what is no archive is left alone."""
    folder = log.with_name("flights")
    folder.mkdir()
    names = [
        model.name_of(datetime(2026, 1, n, tzinfo=UTC), "STALLED", "progress.stalled")
        for n in range(1, 8)
    ]
    for name in [*names, "notes.txt"]:
        (folder / name).write_text("")
    monkeypatch.setattr(stacks, "program", lambda: None)
    with running(HANGS) as process, recorded(process, log):
        tell(log)
        until(lambda: len(archives(log)) == model.KEPT)
        assert [f.path.name for f in archives(log)][1:] == names[:2:-1]
    assert (folder / "notes.txt").exists()
    assert [p for p in folder.iterdir() if p.name.startswith(".")] == []


def test_an_archive_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more signs than fit the newest are kept."""
    monkeypatch.setattr(recorder, "LIMIT_BYTES", 20_000)
    many = [
        replace(signs_of(*[("Worker", n) for n in range(20)])[0], at=float(n)) for n in range(64)
    ]
    kept = json.loads(gzip.decompress(recorder._packed({}, many)))["signs"]
    assert 0 < len(kept) < 64
    assert kept[-1]["at"] == 63.0


def test_a_verdict_that_wavers_pushes_nothing_out(log: Path) -> None:
    """Told again within a minute the same state is not recorded again; another one is."""
    with running(HANGS) as process, recorded(process, log) as made:
        tell(log)
        until(lambda: archives(log))
        tell(log)
        again = told.file(log).stat()
        until(lambda: made._seen == (again.st_ino, again.st_mtime_ns))
        tell(log, State.STALLED, "progress.stalled")
        until(lambda: len(archives(log)) == 2)
        assert [f.why for f in archives(log)] == ["STALLED", "NOT_READY"]


def test_what_was_told_of_a_server_before_is_not_recorded(log: Path) -> None:
    """A file that an earlier start left says nothing of this one."""
    told.make_folder(log)
    tell(log)
    with running(HANGS) as process, recorded(process, log) as made:
        time.sleep(2 * recorder.LOOK_S)
        sent: list[int] = []
        made.before(lambda: sent.append(1))
        until(lambda: sent == [1])
    assert archives(log) == []


def test_a_signal_waits_for_the_stacks_of_a_stuck_server_alone(log: Path, spy: None) -> None:
    """Of one that works it is sent at once; of a stuck one after its stacks, which are kept."""
    with running(HANGS) as process, recorded(process, log) as made:
        sent: list[int] = []
        made.before(lambda: sent.append(1))
        until(lambda: sent == [1])
        tell(log)
        until(lambda: archives(log))
        made.before(process.terminate)
        assert process.wait(PATIENCE_S) == -signal.SIGTERM
    by_signal = next(f for f in archives(log) if f.why == "SIGTERM")
    assert model.stacks(model.load(by_signal.path))[0].threads


def test_a_signal_right_after_the_verdict_finds_the_server_stuck(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was told since the recorder's last look counts: the one flight is the signal's."""
    monkeypatch.setattr(recorder, "LOOK_S", PATIENCE_S)
    with running(HANGS) as process, recorded(process, log) as made:
        tell(log)
        made.before(process.terminate)
        assert process.wait(PATIENCE_S) == -signal.SIGTERM
    assert [f.why for f in archives(log)] == ["SIGTERM"]


def test_a_signal_is_held_no_longer_than_its_limit(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the recorder hangs the signal is sent all the same, and once."""
    hung: list[int] = []

    def hang(*_: object) -> tuple[Stack, ...]:
        hung.append(1)
        time.sleep(1)
        return ()

    monkeypatch.setattr(stacks, "take", hang)
    monkeypatch.setattr(recorder, "HOLD_S", 0.2)
    with running(HANGS) as process, recorded(process, log) as made:
        tell(log)
        until(lambda: hung)
        sent: list[float] = []
        made.before(lambda: sent.append(time.monotonic()))
        until(lambda: sent)
        assert archives(log) == []
    assert len(sent) == 1


def test_leaving_a_stuck_server_takes_its_stacks(log: Path) -> None:
    """A parent that goes on to stop the server itself loses nothing."""
    with running(HANGS) as process:
        with recorded(process, log):
            tell(log)
            until(lambda: archives(log))
        assert {f.why for f in archives(log)} == {"NOT_READY", "SIGTERM"}


def test_a_folder_that_cannot_be_had_costs_the_flights(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line on stderr; the server runs on."""
    log.with_name("flights").write_text("")
    with running(HANGS) as process, recorder.recording(process, log) as made:
        assert made is None
    assert len(capsys.readouterr().err.splitlines()) == 1


# --- the stacks


def target(process: subprocess.Popen[bytes], state: str = "S") -> Process:
    """A process as the signs show it."""
    return Process("Worker", process.pid, state, 0.0, None, 1.0, 1, 1)


def test_a_stopped_process_has_a_stack_and_stays_stopped(spy: None) -> None:
    """It is looked at without being touched."""
    with running(HANGS) as process:
        process.send_signal(signal.SIGSTOP)
        until(lambda: stacks._bare(target(process)).state == "T")
        (stack,) = stacks.take([target(process)], native=True)
        assert stack.threads[0].frames
        assert stacks._bare(target(process)).state == "T"
        assert waits.waits_for(stack).startswith(f"Worker ({process.pid}) is stopped by a signal")


def test_a_process_that_is_gone_is_said(spy: None) -> None:
    """The others have their stacks."""
    with running(HANGS) as gone, running(HANGS) as there:
        gone.kill()
        gone.wait()
        lost, kept = stacks.take([target(gone), target(there)], native=True)
    assert lost.threads == ()
    assert lost.trouble.startswith("py-spy: ")
    assert kept.threads


FAKE = """#!/bin/sh
case "$*" in *--native*) {native};; *) {plain};; esac
"""


@pytest.mark.parametrize(
    "fake", ["sleep 1000", "kill -STOP $$", "echo '[{}]'", "echo no", "exit 3"]
)
def test_no_word_of_py_spy_holds_up_or_breaks_the_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: str
) -> None:
    """One that hangs, is stopped, or speaks nonsense costs a stack, and the reason is kept."""
    program = tmp_path / "py-spy"
    program.write_text(FAKE.format(native=fake, plain=fake))
    program.chmod(0o755)
    monkeypatch.setattr(stacks, "program", lambda: str(program))
    monkeypatch.setattr(stacks, "PLAIN_S", 0.3)
    with running(HANGS) as process:
        (stack,) = stacks.take([target(process)], native=True)
    assert stack.threads == ()
    assert stack.trouble.startswith("py-spy: ")


def test_native_frames_that_take_too_long_leave_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spy: None
) -> None:
    """The stack without them is kept, and the process runs on, however py-spy was killed."""
    real, program = stacks.program(), tmp_path / "py-spy"
    program.write_text(FAKE.format(native='kill -STOP "$3"; sleep 1000', plain=f'exec {real} "$@"'))
    program.chmod(0o755)
    monkeypatch.setattr(stacks, "program", lambda: str(program))
    monkeypatch.setattr(stacks, "NATIVE_S", 0.5)
    with running(HANGS) as process:
        (stack,) = stacks.take([target(process)], native=True)
        assert (stack.native, stack.trouble) == (
            False,
            "no native frames: py-spy: no answer in time",
        )
        assert stack.threads
        until(lambda: stacks._bare(target(process)).state == "S")


def test_without_py_spy_the_rest_is_recorded(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive says what is missing, and what the kernel tells."""
    monkeypatch.setattr(stacks, "program", lambda: None)
    with running(HANGS) as process, recorded(process, log):
        tell(log)
        (stack,) = model.stacks(model.load(until(lambda: archives(log))[0].path))
    assert (stack.threads, stack.state) == ((), "S")
    assert "py-spy: is not installed here" in waits.waits_for(stack)


# --- what a process waits for


def test_each_rule_finds_its_example() -> None:
    """And no rule before it does."""
    for rule in waits.rules():
        met = waits.rule_of(rule.example)
        assert met is not None
        assert met[0].id == rule.id


def test_the_examples_are_of_this_vllm_and_torch() -> None:
    """A function that a rule names is where the rule looks for it."""
    for rule in waits.rules():
        for function, file in (line.split(" ", 1) for line in rule.example):
            package = file.partition("/")[0]
            if package not in ("vllm", "torch"):
                continue
            found = importlib.util.find_spec(package)
            assert found is not None and found.origin is not None
            text = (Path(found.origin).parents[1] / file).read_text("utf-8")
            assert f"def {function.rpartition('.')[2]}(" in text, (rule.id, function, file)


BATON = """
import sys, importlib.util
spec = importlib.util.spec_from_file_location("file_baton", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print("up")
module.FileBaton(sys.argv[2]).wait()
"""
LOCK = "import threading; print('up'); threading.Event().wait()"
PROGRAM = "import subprocess; print('up'); subprocess.run(['sleep', '1000'])"
PIPE = """
import multiprocessing
ours, theirs = multiprocessing.Pipe()
print("up"); ours.recv()
"""


@pytest.mark.parametrize(
    ("code", "id_"),
    [
        (BATON, "lock_file"),
        (LOCK, "lock"),
        (PROGRAM, "program"),
        (PIPE, "socket"),
        (HANGS, "sleep"),
    ],
    ids=["baton", "lock", "program", "pipe", "sleep"],
)
def test_a_real_wait_is_named(code: str, id_: str, tmp_path: Path, spy: None) -> None:
    """Of a process that waits for a baton, a lock, a program, a pipe, or sleeps."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None and torch.origin is not None
    held = tmp_path / "lock"
    held.write_text("")
    baton = Path(torch.origin).parent / "utils" / "file_baton.py"
    words = next(rule.words for rule in waits.rules() if rule.id == id_)
    with running(code, str(baton), str(held)) as process:

        def told() -> str:
            return waits.waits_for(stacks.take([target(process)], native=True)[0])

        until(lambda: words in told())


def stack(*frames: str, state: str = "S", kernel: str = "") -> Stack:
    """A stack of one thread."""
    made = [Frame(f.split(" ")[0], f.split(" ")[1], 7) for f in frames]
    return Stack("Worker_TP1", 9, state, kernel, False, (Thread("MainThread", tuple(made)),))


def test_a_collective_is_named_before_what_it_is_made_of() -> None:
    """The futex below it is nobody's concern."""
    line = waits.waits_for(
        stack("futex_wait libc.so.6", "all_reduce torch/distributed/distributed_c10d.py")
    )
    assert line.startswith("Worker_TP1 (9) is in a collective")
    assert line.endswith("in all_reduce (torch/distributed/distributed_c10d.py:7)")


def test_state_d_is_named_before_anything_else() -> None:
    """What the kernel holds, no signal ends."""
    line = waits.waits_for(stack("read io.py", state="D", kernel="folio_wait_bit"))
    assert "is held by the kernel (state D)" in line


def test_what_no_rule_knows_is_shown_by_its_place() -> None:
    """A stack without a known wait is no riddle."""
    assert "in propose (speculator.py:7)" in waits.waits_for(stack("propose speculator.py"))


# --- what is shown


@pytest.fixture
def kept(log: Path, spy: None) -> Path:
    """The log's folder with one archive."""
    with running(HANGS) as process, recorded(process, log):
        tell(log)
        until(lambda: archives(log))
        process.kill()
        process.wait()
    return log.parent


def test_flights_are_listed_with_their_stacks(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """When, why, and of each process what it waited for and the top of its stack."""
    assert main([str(kept)]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert "UTC NOT_READY progress.none" in first
    assert rest[0].startswith("  EngineCore (")
    assert "sleeps" in rest[0]
    assert any("answer (" in line for line in rest[1:])


def test_explain_names_what_each_process_waited_for(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the server that wrote the log, grown, copied or rotated; of another log's, nothing."""
    from healthcheck import explain

    log = kept / "server.log"
    log.write_text(log.read_text() + "INFO and it goes on\n")
    rotated = log.rename(kept / "server.log.1")
    log.write_text("INFO another engine is up, and it is not the same\n" * 9)
    explain.main([str(rotated)])
    assert "EngineCore (" in capsys.readouterr().out
    explain.main([str(rotated), "--format", "json"])
    assert json.loads(capsys.readouterr().out)["flight"]["why"] == "NOT_READY"
    explain.main([str(log)])
    assert "EngineCore (" not in capsys.readouterr().out
    assert beside(log) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"no gzip", gzip.compress(b"[]"), gzip.compress(b"{")],
    ids=["empty", "no gzip", "no flight", "no JSON"],
)
def test_a_damaged_archive_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    """Exit code 2, and the others are shown."""
    folder = tmp_path / "flights"
    folder.mkdir()
    name = model.name_of(datetime(2026, 1, 1, tzinfo=UTC), "STALLED", "progress.stalled")
    (folder / name).write_bytes(content)
    assert main([str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1


def test_no_flight_and_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """None is no error; a folder that is not there is."""
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no flight in {tmp_path}: none was recorded\n"
    assert main([str(tmp_path / "none")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_line_keeps_nothing_that_names_a_machine() -> None:
    """Hosts, addresses, paths and URLs are taken out of the log's lines, and lines are cut."""
    redaction = Redaction.of(["node7.example"], [KEY])
    line = f"node7 10.0.0.7:29500 /home/me/x http://a.example/{KEY} " + "word " * 400
    shown = lines.clean(line, redaction)
    assert shown.startswith("<host> <address> <path> <url>")
    assert len(shown) == lines.LONGEST_LINE


def test_names_of_archives() -> None:
    """Sorted by name they are sorted by time; another name is none."""
    at = datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC)
    name = model.name_of(at, "STALLED", "progress.stalled")
    assert name == "20260131T235959Z.STALLED.progress.stalled.json.gz"
    assert model.flight(Path(name)) == model.Flight(Path(name), at, "STALLED", "progress.stalled")
    assert model.flight(Path("20269931T235959Z.STALLED.progress.stalled.json.gz")) is None
    assert model.flight(Path("server.log")) is None
    with pytest.raises(ValueError, match="/"):
        model.name_of(at, "STALLED", "../etc")


def test_report_and_page_name_the_last_one(tmp_path: Path) -> None:
    """Its path, what it was made for, the reason and the time; none where there is none."""
    at = datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC)
    folder = tmp_path / "flights"
    folder.mkdir()
    assert Flights(tmp_path / "server.log").last(0.0) is None
    for day in (1, 31):
        name = model.name_of(at.replace(day=day), "STALLED", "progress.stalled")
        (folder / name).touch()
    shown = report.flight_as_json(Flights(tmp_path / "server.log").last(0.0))
    assert shown == {
        "path": str(folder / "20260131T235959Z.STALLED.progress.stalled.json.gz"),
        "why": "STALLED",
        "reason": "progress.stalled",
        "at": "2026-01-31T23:59:59+00:00",
    }
    assert all(word in page._flight(shown) for word in shown.values())
    assert page._flight(report.flight_as_json(None)) == ""
