"""Following a log file that grows, is cut, or is replaced by rotation."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from deploy.files import open_regular
from healthcheck.explain.blocks import BLOCK_BYTES, LONGEST_HEAD, Blocks
from healthcheck.explain.lines import clean, parse
from healthcheck.explain.prefixes import Prefixes
from healthcheck.explain.startup import NEW_START

if TYPE_CHECKING:
    from healthcheck.explain.explainer import Explainer

# Of a log that is there already: how far back its last start is looked for, and what is read of it
# if none is found. A start is 25 kB if healthy, some MB with tracebacks of 8 ranks.
SEARCH_BYTES = 256 * 1024 * 1024
TAIL_BYTES = 4 * 1024 * 1024
_STEP_BYTES = 1024 * 1024


class Tail:
    """The file behind a path: reads on where it stopped, also across rotation.

    With `last_start`, a file that is large already is read from the last start in it.
    """

    def __init__(self, path: Path, explainer: Explainer, *, last_start: bool = False) -> None:
        self._path = path
        self._explainer = explainer
        self._last_start = last_start
        self._file: BinaryIO | None = None
        self._blocks = Blocks()

    def read(self, most: int | None = None) -> bool:
        """Feed what is new, no more than about `most` bytes; returns whether there was anything.

        Raises OSError if the file is there and cannot be read.
        """
        news = self._read_open(most)
        if not self.behind and self._replaced():
            news = self._read_open(most) or news  # written between the last read and the rotation
            self.finish_line()
            self.close()
            news = self._read_open(most) or news
        if news:
            self._explainer.glance(self._blocks.unfinished)
        return news

    @property
    def behind(self) -> bool:
        """Whether the open file holds more than was read, so that the end is not known yet."""
        return self._file is not None and os.fstat(self._file.fileno()).st_size > self._file.tell()

    @property
    def draws(self) -> bool:
        """Whether the last line is a progress bar that goes on."""
        return b"\r" in self._blocks.unfinished

    @property
    def silence_s(self) -> float:
        """Seconds since the file was written last, by the clock of this host; 0 while behind."""
        if self._file is None or self.behind:
            return 0.0
        return max(0.0, time.time() - os.fstat(self._file.fileno()).st_mtime)

    def finish_line(self) -> None:
        """Feed a last line that no newline ends."""
        if rest := self._blocks.rest():
            self._explainer.feed_block(rest)

    def close(self) -> None:
        """Let go of the file; the next read opens the path again."""
        if self._file:
            self._file.close()
            self._file = None

    def _read_open(self, most: int | None) -> bool:
        if self._file is None:
            try:
                self._file = open_regular(self._path)
            except FileNotFoundError:
                return False
            if self._last_start:
                self._file.seek(_last_start(self._file))
                self._last_start = False  # what replaces this file is read whole
        news, until = False, None if most is None else self._file.tell() + most
        while (until is None or self._file.tell() < until) and (
            data := self._file.read(BLOCK_BYTES)
        ):
            news = True
            if block := self._blocks.add(data):
                self._explainer.feed_block(block)
        return news

    def _replaced(self) -> bool:
        if self._file is None:
            return False
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False  # moved away; its successor is not there yet
        mine = os.fstat(self._file.fileno())
        if (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            return True
        return there.st_size < self._file.tell()


def _last_start(file: BinaryIO) -> int:
    """Where to begin to read: at the line of the last start, or TAIL_BYTES before the end."""
    size = end = file.seek(0, os.SEEK_END)
    if size <= TAIL_BYTES:
        return 0
    mark = NEW_START.encode()
    while end > max(size - SEARCH_BYTES, 0):
        begin = max(end - _STEP_BYTES, 0)
        file.seek(begin)
        data = file.read(end - begin + len(mark) - 1)  # a mark may lie across the edge
        at = data.rfind(mark)
        while at >= 0:
            head = max(data.rfind(b"\n", 0, at) + 1, at - LONGEST_HEAD)
            line = data[head : at + len(mark)].decode("utf-8", errors="replace")
            unwrapped = Prefixes().unwrap(clean(line), learn=True)
            if any(parse(one.text).text.startswith(NEW_START) for one in unwrapped):
                return begin + head
            at = data.rfind(mark, 0, at)
        end = begin
    return size - TAIL_BYTES
