"""Takes the stacks of the server's processes with py-spy, each call within a hard time limit.

First all at once without pausing them, which works on stopped processes too and takes a tenth of a
second; then one after the other with native frames, for which py-spy stops the process meanwhile.
Names of functions, files and lines alone are kept: never the values of variables, which hold
prompts.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from healthcheck.flights.model import (
    LONGEST_WORD,
    MOST_FRAMES,
    MOST_THREADS,
    Frame,
    Stack,
    Thread,
)
from healthcheck.signs.gather import PROC, stat
from healthcheck.signs.model import Process

PROGRAM = "py-spy"
# Where docker/Dockerfile puts it.
IMAGE_BIN = Path(__file__).resolve().parents[2] / "bin"
PLAIN_S = 3.0  # for all together
NATIVE_S = 10.0  # for each: py-spy reads the symbols of some GB of libraries
NATIVE_TOGETHER_S = 40.0
ANSWER_LIMIT_BYTES = 4 * 1024 * 1024
_POLL_S = 0.02
_STOPPED = "TtD"  # neither can be made to stop


def program(environ: Mapping[str, str] = os.environ) -> str | None:
    """py-spy of the image, of this Python's environment or of PATH."""
    beside = Path(sys.executable).parent
    path = os.pathsep.join([str(IMAGE_BIN), str(beside), environ.get("PATH", "")])
    return shutil.which(PROGRAM, path=path)


def take(
    processes: Sequence[Process], native: bool, hurry: Callable[[], bool] = lambda: False
) -> tuple[Stack, ...]:
    """The stacks of these processes, with native frames as far as they can be had in time; `hurry`
    is asked meanwhile, and ends the search for them."""
    found = program()
    bare = [_bare(process) for process in processes]
    if found is None:
        return tuple(replace(s, trouble=f"{PROGRAM}: is not installed here") for s in bare)
    asked = [_ask(found, stack.pid, "--nonblocking") for stack in bare]
    until = time.monotonic() + PLAIN_S
    plain = [_answer(a, stack, until) for a, stack in zip(asked, bare, strict=True)]
    if not native:
        return tuple(plain)
    over = time.monotonic() + NATIVE_TOGETHER_S
    return tuple(_with_native(found, stack, over, hurry) for stack in plain)


def _bare(process: Process) -> Stack:
    """What the kernel alone tells of a process now."""
    line, kernel = stat(process.pid), ""
    with contextlib.suppress(OSError):
        wchan = PROC / str(process.pid) / "wchan"
        kernel = wchan.read_text("ascii", "replace").strip()[:LONGEST_WORD]
    state = process.state if line is None else line.state
    return Stack(process.name, process.pid, state, "" if kernel == "0" else kernel, False, ())


def _with_native(found: str, stack: Stack, over: float, hurry: Callable[[], bool]) -> Stack:
    if not stack.threads or stack.state in _STOPPED:
        return stack
    until = min(time.monotonic() + NATIVE_S, over)
    if hurry() or until <= time.monotonic():
        return replace(stack, trouble="no time for native frames")
    answered = _answer(_ask(found, stack.pid, "--native"), stack, until, hurry)
    if answered.trouble:
        # A tracer that is killed may leave behind the stop that it had asked for.
        with contextlib.suppress(OSError):
            os.kill(stack.pid, signal.SIGCONT)
        return replace(stack, trouble=f"no native frames: {answered.trouble}")
    return replace(answered, native=True)


@dataclass(frozen=True)
class _Asked:
    """A py-spy at work, with files in memory for what it says: no disk and no pipe holds it up."""

    process: subprocess.Popen[bytes] | None
    out: int
    errors: int


def _ask(found: str, pid: int, how: str) -> _Asked:
    out, errors = os.memfd_create("stack"), os.memfd_create("errors")
    command = [found, "dump", "--pid", str(pid), "--json", how]
    process = None
    with contextlib.suppress(OSError):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors)
    return _Asked(process, out, errors)


def _answer(
    asked: _Asked, stack: Stack, until: float, hurry: Callable[[], bool] = lambda: False
) -> Stack:
    """The stack with what py-spy said of it; one that does not answer in time is killed, and not
    waited for: a process in state D holds up who looks at it too."""
    process = asked.process
    try:
        if process is None:
            return replace(stack, trouble=f"{PROGRAM}: cannot be run")
        while process.poll() is None:
            if time.monotonic() >= until or hurry():
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_S)
                return replace(stack, trouble=f"{PROGRAM}: no answer in time")
            time.sleep(_POLL_S)
        if process.returncode:
            return replace(stack, trouble=_error(os.pread(asked.errors, 4096, 0)))
        try:
            return replace(stack, threads=_threads(os.pread(asked.out, ANSWER_LIMIT_BYTES, 0)))
        except (ValueError, TypeError, KeyError, RecursionError):
            return replace(stack, trouble=f"{PROGRAM}: its answer cannot be read")
    finally:
        os.close(asked.out)
        os.close(asked.errors)


def _error(said: bytes) -> str:
    """py-spy's first line, which tells what is wrong; a backtrace of its own may follow."""
    lines = said.decode("utf-8", "replace").splitlines()
    first = next((line for line in lines if line.strip()), "it ended without a word")
    return f"{PROGRAM}: {first.removeprefix('Error: ')}"[:LONGEST_WORD]


def _threads(raw: bytes) -> tuple[Thread, ...]:
    """The threads of py-spy's JSON, the main one first."""
    told = sorted(json.loads(raw), key=lambda thread: thread["os_thread_id"] != thread["pid"])
    return tuple(
        Thread(
            _word(thread["thread_name"] or ""),
            tuple(_frame(frame) for frame in thread["frames"][:MOST_FRAMES]),
        )
        for thread in told[:MOST_THREADS]
    )


def _frame(told: Mapping[str, Any]) -> Frame:
    file = _word(told["short_filename"] or told["filename"])
    # A path of this host says nothing that its end does not.
    file = "/".join(Path(file).parts[-3:]) if file.startswith("/") else file
    return Frame(_word(told["name"]), file, int(told["line"]))


def _word(text: str) -> str:
    """A name as an archive holds it."""
    return "".join(c if c.isprintable() else "?" for c in str(text)[:LONGEST_WORD])
