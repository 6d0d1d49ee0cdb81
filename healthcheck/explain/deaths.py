"""Lines that announce the death of a process in native code, where no Python exception tells of it.

They are a class of evidence: one that no signature knows is a cause all the same, shown with its
text. Some say what went wrong, some only that the process crashed or gave itself up; what says
more goes first. Words are those of ROCr and HIP, AITER, torch and c10, CPython's faulthandler,
glibc, libstdc++, LLVM, Rust, the shell and the kernel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum


class Weight(IntEnum):
    """How much a line says of why the process died; less is better."""

    REASON = 0  # what went wrong
    CRASH = 1  # that it crashed, and perhaps where
    ABORT = 2  # that it gave itself up: whoever did so said why before


@dataclass(frozen=True)
class _Kind:
    """A form of line: the text that every one holds, and the whole form from where it begins."""

    literal: str
    form: re.Pattern[str]
    weight: Weight


def _kind(literal: str, weight: Weight, form: str = "") -> _Kind:
    return _Kind(literal, re.compile(form or re.escape(literal)), weight)


# A line begins with it, but for what the runtime and loggers of C++ put in front of their text.
_KINDS = (
    # ROCr and HIP: faults of a GPU
    _kind("HSA_STATUS_ERROR", Weight.REASON, r".{0,200}HSA_STATUS_ERROR"),
    _kind("HW Exception by GPU", Weight.REASON),
    _kind("Memory access fault by GPU", Weight.REASON),
    _kind("GPU core dump failed", Weight.CRASH),
    # AITER's checks: the place, and on the next line what was wrong
    _kind("[AITER] ", Weight.REASON, r"\[AITER\] [^\s:]{1,200}:\d{1,6}"),
    # torch's watchdog of collectives, c10's and glog's checks
    _kind("Watchdog caught collective", Weight.REASON, r".{0,120}Watchdog caught collective"),
    _kind("Check failed: ", Weight.REASON, r".{0,200}Check failed: "),
    # glibc, libstdc++ and the linker
    _kind("(): ", Weight.CRASH, r"(?:free|malloc|realloc|calloc|munmap_chunk)\(\): "),
    _kind("double free or corruption", Weight.CRASH),
    _kind("corrupted size vs. prev_size", Weight.CRASH),
    _kind("corrupted double-linked list", Weight.CRASH),
    _kind("stack smashing detected", Weight.CRASH, r"\*{3} stack smashing detected"),
    _kind("Assertion ", Weight.REASON, r".{1,300}: Assertion [`'].{1,300}' failed\."),
    _kind("symbol lookup error: ", Weight.REASON, r"\S{1,200}: symbol lookup error: "),
    _kind("pure virtual method called", Weight.CRASH),
    _kind("terminate called ", Weight.ABORT),
    # compilers and math libraries
    _kind("LLVM ERROR: ", Weight.REASON),
    _kind("rocBLAS error: ", Weight.REASON),
    _kind("MIOpen Error: ", Weight.REASON, r".{0,60}MIOpen Error: "),
    _kind("' panicked at ", Weight.REASON, r"thread '.{0,80}' panicked at "),
    # crash handlers
    _kind("Segfault encountered", Weight.CRASH, r"[!* ]{0,12}Segfault encountered"),
    _kind("Fatal Python error: Aborted", Weight.ABORT),
    _kind("Fatal Python error: ", Weight.CRASH),
    _kind(" received at time=", Weight.CRASH, r"\*{3} SIG[A-Z]{2,6} received at time="),
    # the kernel and the shell
    _kind("Killed process ", Weight.REASON, r".{0,200}ut of memory: Killed process "),
    _kind(
        "(core dumped)",
        Weight.ABORT,
        r".{0,120}\w {1,30}\(core dumped\)",
    ),
)
LITERALS = tuple(kind.literal for kind in _KINDS)

# What torch and CPython print of a crash: the thread in which it came, its frames, and pages of
# other threads, which wait.
THREAD = re.compile(
    r"(Current thread|Thread) 0x[0-9a-f]{1,16}(?: .{0,60})?\(most recent call first\)"
)
WHAT = "what():"
_NCCL_WARN = re.compile(r".{0,200}NCCL WARN (?P<says>.{1,300})")
NCCL_WARN = "NCCL WARN "


def weight_of(text: str) -> Weight | None:
    """How much a line says of the death that it announces, or None for a line that is none."""
    for kind in _KINDS:
        if kind.literal in text and kind.form.match(text):
            return kind.weight
    return None


def nccl_warning(text: str) -> str:
    """What RCCL says before it returns an error that says nothing, or an empty text."""
    found = _NCCL_WARN.match(text) if NCCL_WARN in text else None
    return found["says"] if found else ""
