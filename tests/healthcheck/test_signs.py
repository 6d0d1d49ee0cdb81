"""Vital signs: what is seen of real processes, constructed cards and cgroups; what is read of a file."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from healthcheck.signs import file, gather, memory
from healthcheck.signs.cards import Cards
from healthcheck.signs.gather import Gatherer, Stat
from healthcheck.signs.model import (
    LIMIT_BYTES,
    NAME,
    Card,
    Compiler,
    Ended,
    Process,
    Signs,
    dump,
    load,
)
from healthcheck.signs.writer import Writer, watching
from healthcheck.worker import Worker
from tests.support.waiting import until

DEADLINE_S = 120.0
# A server of which one process works, one sleeps, one compiles: as vLLM's, by title alone.
SERVER = """
exec -a VLLM::EngineCore sleep 600 &
exec -a VLLM::Worker_TP0 sh -c 'while :; do :; done' &
exec -a VLLM::Worker_TP1 sleep 600 &
"""
# A parent that does not ask about its child, as vLLM's engine core has other things to do first.
SLOW_PARENT = "(exec -a VLLM::Worker sleep 600 & exec sleep 600)"
FULL = Signs(
    at=100.5,
    started=1.0,
    boot=file.boot(),
    processes=(Process("EngineCore", 7, "S", 3.0, 4.0, 1.5, 12, 1 << 30),),
    compilers=(Compiler("hipcc", 5.0, 90.0),),
    cards=(Card("0000:c1:00.0", 99, 100.0, 1, 2, 0, None, 0),),
    memory_bytes=5,
    memory_limit_bytes=None,
    oom_kills=0,
    ended=(Ended("Worker_TP0", 9, 90.0, None, "SIGKILL", by_oom=True),),
)


@contextlib.contextmanager
def server(script: str) -> Iterator[subprocess.Popen[bytes]]:
    """A shell as the server's first process; it and all it started are gone afterwards."""
    started = subprocess.Popen(["bash", "-c", f"{script}\nwait"], start_new_session=True)
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def by_name(signs: Signs) -> dict[str, Process]:
    return {p.name: p for p in signs.processes}


def looks(of: Gatherer) -> Iterator[Signs]:
    """Looks with enough time between them for CPU to be counted."""
    while True:
        yield of.look()
        time.sleep(0.5)


def test_processes_are_told_apart_by_title_and_work_from_sleep(tmp_path: Path) -> None:
    """The engine's processes by vLLM's titles, the first one as the API server, the rest together;
    who sleeps is still since a time, who burns CPU is not."""
    with server(f"{SERVER}\nsleep 600 &") as started:
        gatherer = Gatherer(started.pid, time.monotonic, cgroup=tmp_path)
        seen = by_name(gatherer.look())
        for signs in looks(gatherer):
            seen = by_name(signs)
            if len(seen) == 5 and all(
                seen[n].still_since for n in ("EngineCore", "Worker_TP1", "APIServer", "others")
            ):
                break
        assert set(seen) == {"APIServer", "EngineCore", "Worker_TP0", "Worker_TP1", "others"}
        assert seen["Worker_TP0"].still_since is None
        assert seen["Worker_TP0"].cpu_s > 0
        assert seen["Worker_TP0"].rss_bytes > 0
        assert {p.name for p in signs.engine("0")} == {"EngineCore", "Worker_TP0", "Worker_TP1"}


def test_a_stopped_process_is_seen_and_one_that_goes_on(tmp_path: Path) -> None:
    """SIGSTOP gives T since a time that stays; it is not still, for it does not sleep."""
    with server(SERVER) as started:
        gatherer = Gatherer(started.pid, time.monotonic, cgroup=tmp_path)
        until(lambda: "EngineCore" in by_name(gatherer.look()))
        core = by_name(gatherer.look())["EngineCore"]
        os.kill(core.pid, signal.SIGSTOP)
        until(lambda: by_name(gatherer.look())["EngineCore"].stopped)
        first, again = gatherer.look(), gatherer.look()
        assert by_name(first)["EngineCore"].since == by_name(again)["EngineCore"].since
        assert by_name(again)["EngineCore"].still_since is None
        os.kill(core.pid, signal.SIGCONT)
        until(lambda: not by_name(gatherer.look())["EngineCore"].stopped)


@pytest.mark.parametrize(
    ("change", "still"),
    [
        (lambda line, look: line, True),
        (lambda line, look: replace(line, faults=line.faults + 2 * look), True),
        (lambda line, look: replace(line, faults=line.faults + 3 * look), False),
        (lambda line, look: replace(line, state="D"), False),
        (lambda line, look: replace(line, state="R"), False),
        (lambda line, look: replace(line, cpu_s=0.09 * look), True),
        (lambda line, look: replace(line, cpu_s=0.11 * look), False),
    ],
)
def test_who_is_swapped_out_or_works_a_little_is_not_still(
    tmp_path: Path, change: Callable[[Stat, int], Stat], still: bool
) -> None:
    """Looks two seconds apart by a clock of the test's own, at a sleeping process whose line of
    /proc is changed: pages that are read, a wait for a disk, a twentieth of a core."""
    with server("exec -a VLLM::EngineCore sleep 600 &") as started:
        seconds = itertools.count(0.0, 2.0)
        look = -1

        def read(pid: int) -> Stat | None:
            line = gather.stat(pid)
            return None if line is None else change(line, look)

        gatherer = Gatherer(started.pid, lambda: next(seconds), cgroup=tmp_path, read=read)
        until(lambda: "EngineCore" in by_name(gatherer.look()))
        for look in range(3):  # noqa: B007 - what `read` sees
            seen = by_name(gatherer.look())["EngineCore"]
        assert (seen.still_since is not None) is still


def test_compilers_are_named_with_their_cpu(tmp_path: Path) -> None:
    """What compiles is told by its name and is none of the others."""
    compiler = tmp_path / "hipcc"
    compiler.symlink_to("/bin/bash")
    with server(
        f"{compiler} -c 'while :; do :; done' & {compiler} -c 'while :; do :; done' &"
    ) as s:
        gatherer = Gatherer(s.pid, time.monotonic, cgroup=tmp_path)
        until(lambda: any(c.cpu_s > 0.2 for c in gatherer.look().compilers))
        (one,) = gatherer.look().compilers
        assert one.name == "hipcc"
        assert one.since <= time.monotonic()
        assert by_name(gatherer.look())["others"].threads == 0


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *((n, True) for n in ("hipcc", "clang-20", "amdclang++", "ninja", "ld.lld", "cc1plus")),
        *((n, False) for n in ("python3", "sleep", "clangd", "ssh", "tail")),
    ],
)
def test_what_is_a_compiler(name: str, is_one: bool) -> None:
    """By the whole of the name that the kernel gives."""
    assert bool(gather._COMPILER.fullmatch(name)) is is_one


@pytest.mark.parametrize(
    ("status", "how"),
    [
        (9, "SIGKILL"),
        (256, "exit code 1"),
        (0, "exit code 0"),
        (None, "in an unknown way"),
        (40, "signal 40"),
    ],
)
def test_an_end_is_told_by_its_status(status: int | None, how: str) -> None:
    """As wait gives it: a signal by its name, a code, or that nobody could read it."""
    assert gather.ended("Worker", 1, 2.0, status).how == how


def test_a_killed_worker_is_told_with_its_signal(tmp_path: Path) -> None:
    """A process below the server's own children, read before its parent has asked about it."""
    log = tmp_path / "server.log"
    with server(SLOW_PARENT) as started, watching(started, log):
        until(lambda: "Worker" in by_name(now(log)))
        os.kill(by_name(now(log))["Worker"].pid, signal.SIGKILL)
        until(lambda: bool(now(log).ended))
        assert "Worker" not in by_name(now(log))
    (one,) = now(log).ended
    assert (one.name, one.signal, one.by_oom) == ("Worker", "SIGKILL", False)


def test_an_end_that_can_still_be_asked_about_is_not_told_without_its_signal(
    tmp_path: Path,
) -> None:
    """Gone before a look, and its parent was told: whoever holds the process says how it ended."""
    with server("exec -a VLLM::Worker sleep 600 &") as started:
        gatherer = Gatherer(started.pid, time.monotonic, cgroup=tmp_path)
        until(lambda: "Worker" in by_name(gatherer.look()))
        pid = by_name(gatherer.look())["Worker"].pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: not psutil.pid_exists(pid))
        assert gatherer.look(held=[pid]).ended == ()
        gatherer.end(pid, signal.SIGKILL)
        assert [e.signal for e in gatherer.look().ended] == ["SIGKILL"]


def now(log: Path) -> Signs:
    return file.read(log.with_name(NAME)) or Signs(0.0, 0.0, "")


def test_a_kill_while_the_kernel_counted_one_is_out_of_memory(tmp_path: Path) -> None:
    """The cgroup's count of OOM kills rose since the last look: the SIGKILL was the kernel's."""
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom 0\noom_kill 3\n")
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("123\n")
    with server("exec -a VLLM::Worker sleep 600 &") as started:
        gatherer = Gatherer(started.pid, time.monotonic, cgroup=tmp_path)
        until(lambda: "Worker" in by_name(gatherer.look()))
        events.write_text("low 0\noom 1\noom_kill 4\n")
        gatherer.end(by_name(gatherer.look())["Worker"].pid, 9)
        signs = gatherer.look()
    assert (signs.memory_bytes, signs.memory_limit_bytes, signs.oom_kills) == (123, None, 1)
    events.write_text("oom_kill 5\n")
    assert signs.ended[-1].how == "SIGKILL"  # counted at the look before: another's


def test_the_first_process_ends_with_the_code_that_its_parent_was_given(tmp_path: Path) -> None:
    """What ended the server stays in the file, for the start that comes after it."""
    log = tmp_path / "server.log"
    for code in (7, 3):
        with server(f"exit {code}") as started, watching(started, log):
            started.wait()
    assert [e.exit_code for e in now(log).ended] == [7, 3]
    assert [e.name for e in now(log).ended] == ["APIServer"] * 2


def test_a_server_that_cannot_be_watched_costs_nothing(tmp_path: Path) -> None:
    """A folder that cannot be written, a server that is gone: no signs, no error."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    with watching(gone, tmp_path / "server.log"):
        pass
    with server("sleep 600") as started, watching(started, Path("/proc/none/server.log")):
        pass
    assert not list(tmp_path.iterdir())


def test_the_file_can_be_read_by_the_other_user(tmp_path: Path) -> None:
    """Whatever the umask; a look at the processes takes little of a core."""
    before = os.umask(0o077)
    try:
        with server(SERVER) as started:
            writer = Writer(started, tmp_path / "server.log")
            writer.start()
            until(lambda: (tmp_path / NAME).exists())
            assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o644
            writer.end()
    finally:
        os.umask(before)
    assert [p.name for p in tmp_path.iterdir()] == [NAME]


# --- cards and memory, on constructed folders -------------------------------------------------------


def card(root: Path, node: str, **files: str) -> None:
    """A card's folder in sysfs as the kernel lays it out, and its render node; constructed."""
    folder = root / "sys/devices" / f"0000:{node[-2:]}:00.0"
    for name, text in {"vendor": "0x1002\n", **files}.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    link = root / "sys/class/drm" / node / "device"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.exists():
        link.symlink_to(folder)
    (root / "dev/dri").mkdir(parents=True, exist_ok=True)
    (root / "dev/dri" / node).touch()
    (root / "dev/kfd").touch()


def cards(root: Path) -> Cards:
    return Cards(root / "sys", root / "dev")


def test_a_card_is_read_as_far_as_it_shows_itself(tmp_path: Path) -> None:
    """Load, memory, and errors since the first look; what is not there is not known."""
    umc = {"ras__umc_err_count": "ue: 2\nce: 10\n", "ras__gfx_err_count": "ue: 0\nce: 1\n"}
    xgmi = {"ras__xgmi_wafl_err_count": "ue: 0\nce: 4\n"}
    memory = {"mem_info_vram_used": "100\n", "mem_info_vram_total": "200\n"}
    card(tmp_path, "renderD128", gpu_busy_percent="97\n", **memory, **umc, **xgmi)
    card(tmp_path, "renderD129", gpu_busy_percent="1\n")
    seeing = cards(tmp_path)
    first = seeing.look(5.0)
    assert first == (
        Card("0000:28:00.0", 97, 5.0, 100, 200, 0, 0, 0),
        Card("0000:29:00.0", 1, None, None, None, None, None, None),
    )
    card(tmp_path, "renderD128", gpu_busy_percent="0\n", ras__umc_err_count="ue: 3\nce: 11\n")
    again = seeing.look(7.0)
    assert again is not None
    assert again[0] == Card("0000:28:00.0", 0, 5.0, 100, 200, 1, 1, 0)


def test_a_card_of_several_nodes_is_one_card(tmp_path: Path) -> None:
    """Partitions of a card share its folder."""
    card(tmp_path, "renderD128", gpu_busy_percent="5\n")
    (tmp_path / "sys/class/drm/renderD129").symlink_to(tmp_path / "sys/class/drm/renderD128")
    (tmp_path / "dev/dri/renderD129").touch()
    assert [c.name for c in cards(tmp_path).look(1.0) or ()] == ["0000:28:00.0"]


def test_no_card_and_a_card_that_is_not_to_be_seen_are_two_things(tmp_path: Path) -> None:
    """Without the driver's device nothing can compute on a GPU; with it, and no card that can be
    read or one of another maker, that is not known."""
    assert cards(tmp_path).look(1.0) == ()
    card(tmp_path, "renderD128", vendor="0x10de\n")
    assert cards(tmp_path).look(1.0) is None


def test_the_cgroup_of_a_container_is_its_root(tmp_path: Path) -> None:
    """And elsewhere the folder that /proc names; version 1 and garbage tell nothing."""
    own = tmp_path / "cgroup"
    own.write_text("0::/system.slice/one\n")
    assert memory.folder(tmp_path, own) == tmp_path
    inner = tmp_path / "system.slice/one"
    inner.mkdir(parents=True)
    (inner / "memory.events").write_text("oom_kill 0\n")
    assert memory.folder(tmp_path, own) == inner
    own.write_text("5:memory:/x\n")
    assert memory.folder(tmp_path, own) == tmp_path
    (tmp_path / "memory.events").write_text("oom_kill many\n")
    assert memory.read(tmp_path) == memory.Memory()


# --- the file ---------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Every field comes back as it was."""
    path = tmp_path / NAME
    path.write_text(dump(FULL))
    assert file.read(path) == FULL
    assert file.Beside(tmp_path / "server.log")() == FULL


def test_a_disk_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    """While its thread waits for the disk nothing is seen; once that answers, what is there."""
    worker, answers = Worker("disk"), threading.Event()
    worker.do(lambda: answers.wait(DEADLINE_S))
    (tmp_path / NAME).write_text(dump(FULL))
    beside = file.Beside(tmp_path / "server.log", worker)
    assert beside() is None
    answers.set()
    until(lambda: beside() == FULL)


def test_without_a_thread_nothing_is_seen(tmp_path: Path) -> None:
    """A limit of threads costs the signs and no turn."""

    class Limited(Worker):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    (tmp_path / NAME).write_text(dump(FULL))
    assert file.Beside(tmp_path / "server.log", Limited("none"))() is None


def test_another_boot_is_not_seen(tmp_path: Path) -> None:
    """Times of another boot, or host, mean nothing here."""
    for boot in ("", "other"):
        (tmp_path / NAME).write_text(dump(replace(FULL, boot=boot)))
        assert file.read(tmp_path / NAME) is None


def test_no_file_and_no_regular_one_are_not_seen(tmp_path: Path) -> None:
    """A missing file, a folder, a pipe that nobody writes: nothing, and nobody waits."""
    assert file.read(tmp_path / NAME) is None
    assert file.read(tmp_path) is None
    os.mkfifo(tmp_path / "pipe")
    assert file.read(tmp_path / "pipe") is None


def changed(**values: object) -> bytes:
    return json.dumps({**json.loads(dump(FULL)), **values}).encode()


def one_process(**values: object) -> bytes:
    return changed(processes=[{**json.loads(dump(FULL))["processes"][0], **values}])


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        dump(FULL).encode()[:-1],
        dump(FULL).encode() + b" " * LIMIT_BYTES,
        changed(schema=2),
        changed(at="1"),
        changed(at=True),
        changed(at=None),
        changed(at=1e300),
        changed(at=10**400),
        changed(more=1),
        changed(processes={}),
        changed(processes=[[]]),
        changed(cards=0),
        changed(processes=json.loads(dump(FULL))["processes"] * 300),
        changed(oom_kills=1.5),
        one_process(name="x\n"),
        one_process(name="\x1b[0m"),
        one_process(name="x" * 100),
        one_process(name=7),
        one_process(pid=float("nan")),
        one_process(cpu_s=float("inf")),
        one_process(state=None),
    ],
    ids=lambda raw: raw[:12].decode("ascii", "replace") + str(len(raw)),
)
def test_what_the_writer_would_not_write_is_not_seen(raw: bytes) -> None:
    """A file cut off, too long, of another schema, with a field too many or of another type, with
    numbers that are none and words that a terminal would obey."""
    assert load(raw) is None


def test_the_engine_of_a_rank_has_its_own_processes() -> None:
    """With data parallelism by the rank in the title; a lone engine has them all."""
    names = ("EngineCore_DP0", "EngineCore_DP1", "Worker_DP1_TP0", "Worker_DP10_TP1", "others")
    made = tuple(Process(n, i, "S", 0.0, 0.0, 0.0, 1, 1) for i, n in enumerate(names))
    signs = replace(FULL, processes=made)
    assert [p.name for p in signs.engine("1")] == ["EngineCore_DP1", "Worker_DP1_TP0"]
    assert signs.engine("2") == ()
    alone = replace(FULL, processes=made[1:])
    assert len(alone.engine("0")) == 3


def test_the_launcher_writes_them_beside_its_log(tmp_path: Path) -> None:
    """docker/launch.py on a server of two processes: the file is there while it runs."""
    launch = Path(__file__).resolve().parents[2] / "docker/launch.py"
    log = tmp_path / "server.log"
    started = subprocess.Popen(
        [
            sys.executable,
            str(launch),
            "bash",
            "-c",
            "(exec -a VLLM::EngineCore sleep 600 & exec sh -c 'read x')",
        ],
        env={**os.environ, "DSPARK_LOG": str(log)},
        stdin=subprocess.PIPE,
    )
    try:
        until(lambda: {"APIServer", "EngineCore"} <= set(by_name(now(log))))
        os.kill(by_name(now(log))["EngineCore"].pid, signal.SIGTERM)
        until(lambda: bool(now(log).ended))
        assert started.stdin is not None
        started.stdin.close()
        assert started.wait(DEADLINE_S) == 1
    finally:
        started.kill()
        started.wait()
    assert [(e.name, e.how) for e in now(log).ended] == [
        ("EngineCore", "SIGTERM"),
        ("APIServer", "exit code 1"),
    ]
