"""Looks at the processes below the server's parent, and tells them apart by vLLM's own titles.

psutil finds them. What it does not give, the major page faults and the exit code of a process that
its parent has not asked about yet, is read from the same line of /proc as state and CPU.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from healthcheck.signs import memory
from healthcheck.signs.cards import Cards
from healthcheck.signs.file import boot
from healthcheck.signs.model import (
    LONGEST_WORD,
    MOST,
    OTHERS,
    Compiler,
    Ended,
    Process,
    Signs,
)

ROOT = "APIServer"  # what vLLM's first process is, which has no title
# Still: idle workers and hung ones of vLLM 0.27.1 took 0 to 2.5 % of a core, working ones 90 %.
STILL_SHARE = 0.05
# A page or two come in for whatever a sleeping thread does now and then.
STILL_FAULTS = 2
ENDED_KEPT = 16
PROC = Path("/proc")
# States of a process that has ended and that nobody has asked about yet.
ENDED = "ZX"
# ioctl(PIDFD_GET_INFO) of linux/pidfd.h, first version: mask, cgroup, pid to fsgid, exit code.
_PIDFD_INFO = struct.Struct("=QQ11Ii")
_GET_INFO = 0xC040FF0B
_INFO_EXIT = 1 << 3
# What hipcc, AITER's ninja, Triton's and Inductor's C++ stages run.
_COMPILER = re.compile(
    r"hipcc(\.bin|\.pl)?|(amd)?clang(\+\+)?(-\d+)?|(gcc|g\+\+|cc1|cc1plus)(-\d+)?|ninja|cmake|"
    r"(ld|as)(\.\w+)?|lld|llc|opt|lto1|collect2|c\+\+|cc"
)
_TITLE = re.compile(r"::(\w+)")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Stat:
    """A line of /proc/PID/stat. `exit_status` as wait gives it, of a process that has ended."""

    command: str
    state: str
    cpu_s: float
    threads: int
    rss_bytes: int
    faults: int
    exit_status: int


def stat(pid: int) -> Stat | None:
    """The process's line; None if it is gone."""
    try:
        line = (PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    command, _, rest = line.partition("(")[2].rpartition(")")
    field = rest.split()  # from the third on, as proc(5) counts
    return Stat(
        command,
        field[0],
        (int(field[11]) + int(field[12])) * _TICK_S,
        int(field[17]),
        int(field[21]) * _PAGE_BYTES,
        int(field[9]),
        int(field[49]),
    )


def exit_status(pid: int, handle: int) -> int | None:
    """The status of a process that has just ended, as wait gives it; `handle` is its pidfd.

    Linux 6.15 and later keep it at the handle. Before, it stands in /proc until the parent has
    asked; None if that was sooner.
    """
    with contextlib.suppress(OSError):
        told = bytearray(_PIDFD_INFO.pack(_INFO_EXIT, *[0] * 13))
        fcntl.ioctl(handle, _GET_INFO, told)
        mask, *_, status = _PIDFD_INFO.unpack(told)
        if mask & _INFO_EXIT:
            return int(status)
    line = stat(pid)
    return line.exit_status if line is not None and line.state in ENDED else None


def ended(name: str, pid: int, at: float, status: int | None) -> Ended:
    """How a process ended, by its status as wait gives it; None where nobody could read it."""
    if status is None:
        return Ended(name, pid, at)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return Ended(name, pid, at, code)
    with contextlib.suppress(ValueError):
        return Ended(name, pid, at, None, signal.Signals(-code).name)
    return Ended(name, pid, at, None, f"signal {-code}")


@dataclass(frozen=True)
class _Known:
    """A process as it was at the last look; `process` None for the rest together."""

    process: psutil.Process | None
    shown: Process
    faults: int


class Gatherer:
    """Looks again and again at the processes below `root`, a process id.

    `before` are the ends that an earlier start left. Needs its own process to have a file system
    of processes (/proc); a process that it cannot read is passed over.
    """

    def __init__(
        self,
        root: int,
        clock: Callable[[], float],
        cards: Cards | None = None,
        cgroup: Path | None = None,
        before: tuple[Ended, ...] = (),
        read: Callable[[int], Stat | None] = stat,
    ) -> None:
        self._root = psutil.Process(root)
        self._clock = clock
        self._cards = cards or Cards()
        self._cgroup = cgroup or memory.folder()
        self._boot = boot()
        self._started = clock()
        self._kills = self._first_kills = memory.read(self._cgroup).oom_kills
        self._known: dict[int, _Known] = {}
        self._others: _Known | None = None
        self._looked_at = self._started
        self._compilers_since: dict[str, float] = {}
        self._ended = before
        self._read = read

    @property
    def watched(self) -> Mapping[int, str]:
        """The processes that vLLM has given a title, and its first one: names by id."""
        return {pid: known.shown.name for pid, known in self._known.items()}

    def end(self, pid: int, status: int | None) -> None:
        """One of the watched has ended, with this status if anybody could read it."""
        known = self._known.pop(pid, None)
        if known is None and pid != self._root.pid:
            return
        name = ROOT if known is None else known.shown.name
        kills = memory.read(self._cgroup).oom_kills
        one = ended(name, pid, self._clock(), status)
        by_oom = (kills or 0) > (self._kills or 0) and one.signal in (None, "SIGKILL")
        self._kills = kills
        self._ended = (*self._ended, replace(one, by_oom=by_oom))[-ENDED_KEPT:]

    def look(self, held: Collection[int] = ()) -> Signs:
        """What there is now. Of those `held` who are gone `end` tells: their holder can still ask
        how they ended."""
        at = self._clock()
        family = self._family()
        seen: dict[int, tuple[psutil.Process, str, Stat]] = {}
        for process in family:
            line = self._read(process.pid)
            if line is not None:
                seen[process.pid] = (process, self._name(process), line)
        for pid in [p for p in self._known if p not in seen or seen[p][2].state in ENDED]:
            if pid == self._root.pid:  # whose end its parent tells
                continue
            if pid in seen:
                self.end(pid, seen[pid][2].exit_status)
            elif pid not in held:
                self.end(pid, None)
        compilers: dict[str, float] = {}
        rest = Stat(OTHERS, "S", 0.0, 0, 0, 0, 0)
        for pid, (process, name, line) in seen.items():
            if line.state in ENDED:
                continue
            if name:
                self._known[pid] = self._again(self._known.get(pid), process, name, line, at)
            elif _COMPILER.fullmatch(line.command):
                compilers[line.command] = compilers.get(line.command, 0.0) + line.cpu_s
            else:
                rest = _plus(rest, line)
        self._others = self._again(self._others, None, OTHERS, rest, at)
        self._looked_at = at
        self._compilers_since = {n: self._compilers_since.get(n, at) for n in compilers}
        told = memory.read(self._cgroup)
        self._kills = told.oom_kills
        return Signs(
            at=at,
            started=self._started,
            boot=self._boot,
            processes=(*(k.shown for k in self._known.values()), self._others.shown)[-MOST:],
            compilers=tuple(
                Compiler(name, self._compilers_since[name], used)
                for name, used in sorted(compilers.items())
            )[:MOST],
            cards=self._cards.look(at),
            memory_bytes=told.used_bytes,
            memory_limit_bytes=told.limit_bytes,
            oom_kills=_since(told.oom_kills, self._first_kills),
            ended=self._ended,
        )

    def _family(self) -> list[psutil.Process]:
        """The root and all below it, and who was there before and has lost its parent since."""
        family: set[psutil.Process] = set()
        with contextlib.suppress(psutil.Error):
            family = {self._root, *self._root.children(recursive=True)}
        known = {k.process for k in self._known.values() if k.process is not None}
        left = {process for process in known - family if process.is_running()}
        return sorted(family | left, key=lambda process: process.pid)

    def _name(self, process: psutil.Process) -> str:
        """vLLM's title of a process, empty for none."""
        words: list[str] = []
        with contextlib.suppress(psutil.Error):  # an ended one has none
            words = process.cmdline()
        titled = _TITLE.search(words[0]) if words else None
        if titled is not None:
            return titled[1][:LONGEST_WORD]
        known = self._known.get(process.pid)
        if known is not None:
            return known.shown.name
        return ROOT if process.pid == self._root.pid else ""

    def _again(
        self,
        known: _Known | None,
        process: psutil.Process | None,
        name: str,
        line: Stat,
        at: float,
    ) -> _Known:
        """A process at this look, beside what it was at the last one."""
        since, still_since = at, None
        if known is not None and known.process == process:
            before = known.shown
            since = before.since if before.state == line.state else at
            used = line.cpu_s - before.cpu_s  # of several together, less once one has ended
            quiet = 0 <= used <= STILL_SHARE * (at - self._looked_at)
            if quiet and line.state in "SI" and line.faults - known.faults <= STILL_FAULTS:
                still_since = self._looked_at if before.still_since is None else before.still_since
        pid = 0 if process is None else process.pid
        shown = Process(
            *(name, pid, line.state, since, still_since),
            *(round(line.cpu_s, 2), line.threads, line.rss_bytes),
        )
        return _Known(process, shown, line.faults)


def _plus(one: Stat, other: Stat) -> Stat:
    """Two lines as one of processes that are taken together."""
    return replace(
        one,
        cpu_s=one.cpu_s + other.cpu_s,
        threads=one.threads + other.threads,
        rss_bytes=one.rss_bytes + other.rss_bytes,
        faults=one.faults + other.faults,
    )


def _since(now: int | None, first: int | None) -> int | None:
    return None if now is None or first is None else max(now - first, 0)
