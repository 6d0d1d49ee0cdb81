"""Where a fault of a GPU or a hang came about, as far as the lines before it show.

The fault's own line names a node and an address. Which kernel ran is told by what was built or
warmed up last, and whether the size of a batch can matter by how many requests ran.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from healthcheck.explain.lines import printable

# Causes to which it adds something: whoever faults or hangs does not say in what.
FAULTS = frozenset({
    "rocm.mem_fault", "rocm.hsa_exception", "rocm.hsa_memory", "rocm.hsa_code", "rocm.hsa_error",
    "rocm.hang", "rccl.watchdog", "engine.rpc_timeout", "native.segfault",
})  # fmt: skip
# Of these, the ones in which the size of a batch may play a part.
_OF_A_SIZE = frozenset({"rocm.mem_fault", "rocm.hsa_memory"})

LITERALS = ("] start build [", "JIT compilation during inference: ")
_LITERALS = (*LITERALS, "Warming up ")  # the last only of a start
RUNNING = "Running: "

_BUILD = re.compile(r"\[aiter.{0,200}?\] start build \[(?P<what>[^\]\s]{1,200})")
_JIT = re.compile(r".{0,80}JIT compilation during inference: (?P<what>\w{1,200})")
_WARMING = re.compile(r"(?P<what>Warming up .{1,200})")
_SAYS = (
    (_BUILD, "before it AITER built {what} (line {line}): look at that kernel first"),
    (_JIT, "before it {what} was compiled while serving (line {line}): extend the warm-up"),
    (_WARMING, "it came after '{what}' (line {line})"),
)
_HASH = re.compile(r"_[0-9a-f]{8,64}$")  # of a build's arguments
_SAMPLES = re.compile(r"top_?[kp]|renorm|sampl|gumbel")
_REQUESTS = re.compile(r"Running: (\d{1,9}) reqs")


@dataclass(frozen=True)
class _Place:
    line_number: int
    says: str


class Places:
    """What was built, compiled or warmed up last, and how many requests ran, in one start."""

    def __init__(self) -> None:
        self._last: _Place | None = None
        self._running: int | None = None

    def note(self, text: str, number: int) -> None:
        """Take in a line."""
        if not any(literal in text for literal in _LITERALS):
            return
        for form, says in _SAYS:
            if found := form.match(text):
                what = _HASH.sub("", found["what"].rpartition("/")[2] or found["what"])
                what = printable(what).rstrip(". ")
                kernel = f"{what} of the sampler" if _SAMPLES.search(what) else what
                self._last = _Place(number, says.format(what=kernel, line=number))

    def count(self, text: str) -> None:
        """Take in a line of counters."""
        if found := _REQUESTS.search(text):
            self._running = int(found[1])

    def serve(self) -> None:
        """The server is ready: what the start did last is not where a later fault came."""
        self._last = None

    def of(self, cause: str, line_number: int) -> Iterator[str]:
        """What there is to say of a cause that stands on that line."""
        if cause not in FAULTS:
            return
        if self._last and self._last.line_number < line_number:
            yield self._last.says
        if cause in _OF_A_SIZE and self._running == 1:
            yield (
                "one request ran, so the size of a batch does not matter: ask with prompts shorter "
                "and longer than 2,048 tokens, from where on the sparse indexer picks tokens"
            )
        elif cause in _OF_A_SIZE and self._running:
            yield (
                f"{self._running} requests ran: see whether it stays away with fewer (max-num-seqs)"
            )
