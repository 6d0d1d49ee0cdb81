"""Writes the vital signs of a server beside its log, from the process that started it.

A thread of its own, on which the server never depends: what it cannot read or write is left out
until it can.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import psutil

from deploy.files import write_whole
from healthcheck.signs.file import read
from healthcheck.signs.gather import Gatherer, exit_status
from healthcheck.signs.model import INTERVAL_S, NAME, Signs, dump

# After a look the thread rests so many times as long as the look took of CPU.
REST = 50.0
# The health service is another user.
MODE = 0o644
# Ten minutes, for the flight recorder.
KEPT = int(600 / INTERVAL_S)
END_S = 5.0


class Writer:
    """The signs of the processes below `server`, written to a file in the log's folder until
    `end`. Raises psutil.Error if the server has gone already."""

    def __init__(self, server: subprocess.Popen[bytes], log: Path) -> None:
        self._server = server
        self._file = log.with_name(NAME)
        earlier = read(self._file)
        before = () if earlier is None else earlier.ended
        self._gatherer = Gatherer(server.pid, time.monotonic, before=before)
        self._kept: deque[Signs] = deque(maxlen=KEPT)
        self._handles: dict[int, int] = {}  # process ids by a descriptor that tells of their end
        self._poll = select.poll()
        self._wake, self._woken = os.pipe()
        self._poll.register(self._wake, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name="signs", daemon=True)

    def start(self) -> None:
        """Write from now on. Raises RuntimeError if there can be no thread."""
        self._thread.start()

    def kept(self) -> tuple[Signs, ...]:
        """The signs of the last KEPT looks, the newest last; thread-safe."""
        return tuple(self._kept)

    def end(self) -> None:
        """Stop; once the server has ended the file's last state says how."""
        os.write(self._woken, b"x")
        self._thread.join(END_S)
        if self._thread.is_alive():
            return  # it waits for a disk
        code = self._server.returncode
        if code is not None:
            # The status that wait gave: a signal's number, or the code above it.
            self._gatherer.end(self._server.pid, -code if code < 0 else code << 8)
            self._write()
        for handle in (*self._handles, self._wake, self._woken):
            os.close(handle)

    def _run(self) -> None:
        while True:
            began = time.thread_time()
            self._write()
            self._hold()
            pause_s = max(INTERVAL_S, REST * (time.thread_time() - began))
            for handle, _ in self._poll.poll(pause_s * 1000):
                if handle == self._wake:
                    return
                self._take(handle)

    def _write(self) -> None:
        signs = self._gatherer.look(self._handles.values())
        self._kept.append(signs)
        with contextlib.suppress(OSError):
            write_whole(self._file, dump(signs), MODE)

    def _hold(self) -> None:
        """A descriptor for every watched process, which is readable once that has ended."""
        held = {self._server.pid, *self._handles.values()}  # whose code is for us to ask
        for pid in self._gatherer.watched.keys() - held:
            with contextlib.suppress(OSError):  # gone, or a kernel without it
                handle = os.pidfd_open(pid)
                self._handles[handle] = pid
                self._poll.register(handle, select.POLLIN)

    def _take(self, handle: int) -> None:
        """How it ended, before its parent has asked: from then on nobody knows."""
        pid = self._handles.pop(handle)
        self._gatherer.end(pid, exit_status(pid, handle))
        self._poll.unregister(handle)
        os.close(handle)


@contextlib.contextmanager
def watching(server: subprocess.Popen[bytes], log: Path) -> Iterator[Writer | None]:
    """Signs of the server are written beside `log` meanwhile, as far as they can be."""
    writer: Writer | None = None
    with contextlib.suppress(psutil.Error, OSError, RuntimeError):  # gone, or a machine's limit
        made = Writer(server, log)
        made.start()
        writer = made
    try:
        yield writer
    finally:
        if writer is not None:
            writer.end()
