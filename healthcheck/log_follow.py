"""Following a log file that grows, is cut, or is replaced by rotation."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from healthcheck.log_blocks import BLOCK_BYTES, Blocks

if TYPE_CHECKING:
    from healthcheck.explain import Explainer


class Stop(Protocol):
    """When to stop following; threading.Event is one."""

    def is_set(self) -> bool:
        """Whether to stop."""

    def wait(self, timeout: float) -> bool:
        """Wait until it is set, at most `timeout` seconds; returns whether it is set."""


def follow(
    path: Path,
    explainer: Explainer,
    stop: Stop,
    clock: Callable[[], float] = time.monotonic,
    poll_s: float = 0.5,
) -> None:
    """Feed `explainer` with what `path` holds and will hold, until `stop` is set.

    The file may not exist yet, may be cut to nothing and may be replaced by rotation: what the old
    one still held is read first. Silence is told to the explainer by `clock` (monotonic seconds).
    Returns after one last look once `stop` is set. Raises OSError if the file is there and cannot
    be read.
    """
    tail = _Tail(path, explainer)
    last_news = clock()
    try:
        while True:
            stopping = stop.is_set()
            if tail.read():
                last_news = clock()
            else:
                explainer.silence(clock() - last_news)
            if stopping:
                tail.finish_line()
                return
            stop.wait(poll_s)
    finally:
        tail.close()


class _Tail:
    """The file behind a path: reads on where it stopped, also across rotation."""

    def __init__(self, path: Path, explainer: Explainer) -> None:
        self._path = path
        self._explainer = explainer
        self._file: BinaryIO | None = None
        self._blocks = Blocks()

    def read(self) -> bool:
        """Feed what is new; returns whether there was anything."""
        news = self._read_open()
        if self._replaced():
            news = self._read_open() or news  # written between the last read and the rotation
            self.finish_line()
            self.close()
            news = self._read_open() or news
        return news

    def finish_line(self) -> None:
        """Feed a last line that no newline ends."""
        if rest := self._blocks.rest():
            self._explainer.feed_block(rest)

    def close(self) -> None:
        """Let go of the file; the next read opens the path again."""
        if self._file:
            self._file.close()
            self._file = None

    def _read_open(self) -> bool:
        if self._file is None:
            try:
                self._file = self._path.open("rb")
            except FileNotFoundError:
                return False
        news = False
        while data := self._file.read(BLOCK_BYTES):
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
