"""Reading a log in blocks of whole lines, and finding the few lines worth a closer look.

A log of gigabytes is nearly all access lines and counters. Each block is searched for the fixed
texts of the signatures, which costs a fraction of taking every line apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from healthcheck.explain.encodings import Decoder
from healthcheck.explain.lines import LONGEST_LINE

BLOCK_BYTES = 262_144
LONGEST_HEAD = 400  # bytes that hold a line's prefixes

_ANSI = re.compile(rb"\x1b\[[0-9;?]{0,30}[@-~]")


class Blocks:
    """Cuts a stream of bytes into blocks of UTF-8 that end with a line; an overlong line is
    shortened. Raises UnreadableLogError for what is no text."""

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._rest = b""
        self._skipping = False

    def add(self, data: bytes) -> bytes:
        """The whole lines that are there now that `data` has come."""
        return self._cut(self._decoder.add(data))

    def _cut(self, data: bytes) -> bytes:
        if self._skipping:
            end = data.find(b"\n")
            if end < 0:
                return b""
            data, self._skipping = data[end:], False
        head, newline, tail = (self._rest + data).rpartition(b"\n")
        # Bytes that make up LONGEST_LINE characters in any encoding of UTF-8.
        if len(tail) > 4 * LONGEST_LINE:
            tail, self._skipping = tail[: 4 * LONGEST_LINE], True
        self._rest = tail
        return head + newline

    @property
    def unfinished(self) -> bytes:
        """The last line as far as it has come; it is kept."""
        return self._rest + self._decoder.pending

    def rest(self) -> bytes:
        """The last line, which no newline ended."""
        whole = self._cut(self._decoder.rest())
        rest, self._rest, self._skipping = self._rest, b"", False
        return whole + rest


def read_blocks(stream: BinaryIO) -> Iterator[bytes]:
    """The whole of `stream` as blocks of whole lines."""
    blocks = Blocks()
    read = getattr(stream, "read1", stream.read)  # of a pipe, what is there already
    while data := read(BLOCK_BYTES):
        if block := blocks.add(data):
            yield block
    if rest := blocks.rest():
        yield rest


class Block:
    """One block of whole lines, without colours, in which lines can be found by their text."""

    def __init__(self, data: bytes) -> None:
        self._whole = _ANSI.sub(b"", data) if b"\x1b" in data else data
        # A progress bar returns the carriage: what stands after it is a line of its own.
        returns = b"\r" in self._whole
        self._lines = self._whole.replace(b"\r", b"\n") if returns else self._whole

    def __len__(self) -> int:
        return len(self._lines)

    def line_starts(self, literals: Iterable[bytes]) -> list[int]:
        """Where the lines begin that hold any of `literals`, in order."""
        starts = set()
        for literal in literals:
            at = self._lines.find(literal)
            while at >= 0:
                starts.add(self._lines.rfind(b"\n", 0, at) + 1)
                end = self._lines.find(b"\n", at)
                at = self._lines.find(literal, end) if end >= 0 else -1
        return sorted(starts)

    def line_at(self, start: int) -> tuple[str, int]:
        """The line that begins at `start`, and where the next one does."""
        end = self._lines.find(b"\n", start)
        end = len(self._lines) if end < 0 else end
        return self._lines[start : min(end, start + 4 * LONGEST_LINE)].decode(
            "utf-8", errors="replace"
        ), end + 1

    def head_of(self, start: int) -> str:
        """How the line of the file begins, if a progress bar drew over it before `start`."""
        if self._whole[start - 1 : start] != b"\r":
            return ""
        begin = self._whole.rfind(b"\n", 0, start) + 1
        return self._whole[begin : begin + LONGEST_HEAD].decode("utf-8", errors="replace")

    def lines_before(self, start: int, most: int) -> Iterator[str]:
        """At most `most` lines before the one that begins at `start`, the last one first."""
        for _ in range(most):
            if start <= 0:
                return
            start = self._lines.rfind(b"\n", 0, start - 1) + 1
            yield self.line_at(start)[0]

    def last_before(self, start: int, since: int, text: bytes) -> str:
        """The last line that holds `text` between two places, or nothing."""
        at = self._lines.rfind(text, since, start)
        return self.line_at(self._lines.rfind(b"\n", 0, at) + 1)[0] if at >= 0 else ""

    def newlines(self, start: int, end: int) -> int:
        """How many lines of the file end between two places."""
        return self._whole.count(b"\n", start, end)
