"""Engine and worker as forks of the process that starts them, with vLLM imported already.

Why: vLLM starts both in a new interpreter on a CPU, which imports vLLM once more for each: half of
a start, and most of its memory.
Why it is safe: the child is what a new interpreter would be after the same imports. It reads its
task from the same pipe, holds the descriptors that it was given and no other, so that each process
sees the death of another as it does in production, and begins with default signals, its own title
and plain streams. Parent and child are the same as without.
Remove when: a start is no longer bound by imports.
"""

import contextlib
import gc
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from multiprocessing import util
from typing import Any, NoReturn

_EXEC = util.spawnv_passfds
_MARK = "--multiprocessing-fork"  # the last word of the command that a spawned process runs


def spawn_by_forking() -> None:
    """Let multiprocessing's spawn fork this process, once in a process."""
    util.spawnv_passfds = _start


def _start(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
    """The pid of a new process that runs the command `args` and holds the descriptors `passfds`."""
    words = [os.fsdecode(word) for word in args]
    if words[-1] != _MARK:
        return _EXEC(path, args, passfds)  # such as the tracker of shared memory
    child = os.fork()
    if child == 0:
        _be(words, passfds)
    return child


def _be(words: list[str], kept: Sequence[int]) -> NoReturn:
    """Become the new process; ends it whatever happens."""
    code = 1
    try:
        _forget_parent(words, kept)
        exec(words[words.index("-c") + 1], {})  # noqa: S102  # multiprocessing's own call
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
    except BaseException:  # as the interpreter prints what nobody catches
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _forget_parent(words: list[str], kept: Sequence[int]) -> None:
    """Keep nothing of the parent but what it has imported."""
    gc.freeze()  # no object of the parent's may end here and close a descriptor
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _close_all_but({0, 1, 2, *kept})
    for stream in (sys.stdout, sys.stderr):
        for name in ("write", "_original_write"):
            vars(stream).pop(name, None)  # the parent's name before each line
    log = sys.modules.get("vllm.logger")
    for name in ("_print_debug_once", "_print_info_once", "_print_warning_once") if log else ():
        getattr(log, name).cache_clear()  # what each process says once
    sys.argv = ["-c", *words[words.index("-c") + 2 :]]
    import setproctitle

    setproctitle.setproctitle(" ".join(words))


def _close_all_but(kept: set[int]) -> None:
    first = 0
    for descriptor in sorted(kept):
        if first < descriptor:  # an empty range would close all there are
            os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
