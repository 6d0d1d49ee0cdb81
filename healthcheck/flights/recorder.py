"""Records a flight in the server's parent: the only one that may look into its processes.

A thread looks for told/stuck.json once a second. It takes the stacks, adds vital signs, readings,
timeline and the log's end, and writes flights/NAME beside the log, whole or not at all. A signal
that is to end a stuck server is held back until the stacks are taken, HOLD_S at most.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from deploy.files import write_whole
from deploy.redaction import Redaction
from healthcheck.flights import lines, stacks, told
from healthcheck.flights.model import (
    FOLDER,
    KEPT,
    LIMIT_BYTES,
    SCHEMA,
    SIGTERM,
    listed,
    name_of,
    stack_as_json,
)
from healthcheck.signs.model import Signs
from healthcheck.signs.writer import MODE, watching
from healthcheck.words import fault

LOOK_S = 1.0
HOLD_S = 5.0
# Of one state; a verdict that wavers would push out what came first.
QUIET_S = 60.0
END_S = 5.0
SECRETS = ("VLLM_API_KEY", "HF_TOKEN")


class Recorder:
    """Records the flights of a server whose log is `log`, from `start` to `end`.

    `signs` gives the vital signs that are kept. Whatever goes wrong costs a flight and is said on
    stderr, never the server.
    """

    def __init__(
        self,
        server: subprocess.Popen[bytes],
        log: Path,
        signs: Callable[[], Sequence[Signs]],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._server = server
        self._log = log
        self._signs = signs
        self._redaction = Redaction.of(
            [platform.node()], [environ.get(name, "") for name in SECRETS]
        )
        self._began = time.monotonic()
        self._stuck: told.Stuck | None = None
        self._seen: tuple[int, int] | None = None
        self._recorded: dict[str, float] = {}  # when, by state
        self._holding = False
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="flights", daemon=True)

    def start(self) -> None:
        """Watch from now on. Raises OSError if there can be no folders, RuntimeError no thread."""
        told.make_folder(self._log)
        self._log.with_name(FOLDER).mkdir(exist_ok=True)
        self._thread.start()

    def before(self, send: Callable[[], object]) -> None:
        """Call `send`, which ends the server, in the recorder's thread: where the server is stuck
        once its stacks are taken. May be called in a signal's handler."""
        if self._holding:
            send()
            return
        self._holding = True
        left = [send]

        def once() -> None:
            with contextlib.suppress(IndexError):
                left.pop()()

        self._calls.put(lambda: self._last(once))
        limit = threading.Timer(HOLD_S, once)  # the thread may wait for a disk
        limit.daemon = True
        try:
            limit.start()
        except RuntimeError:
            once()

    def end(self) -> None:
        """Stop, END_S at most; what leaves a stuck server that runs takes its stacks first."""
        if self._server.poll() is None:
            self.before(lambda: None)
        self._holding = True
        self._calls.put(None)
        self._thread.join(END_S)

    def _run(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=LOOK_S)
            except Empty:
                call = self._look
            if call is None:
                return
            try:
                call()
            except Exception as e:  # the recorder is an extra: the server does without
                print(f"flights: {fault(e)}", file=sys.stderr, flush=True)

    def _last(self, send: Callable[[], None]) -> None:
        """Record a stuck server before `send`; what was told since the last look counts."""
        try:
            self._see()
        finally:
            if self._stuck is None:
                self._holding = False
                send()
        if self._stuck is not None:
            self._record(SIGTERM, native=False, then=send)

    def _look(self) -> None:
        """Record a server of which the health service says anew that it is stuck."""
        if self._see() and self._stuck is not None and not self._holding:
            last = self._recorded.get(self._stuck.state)
            if last is None or time.monotonic() - last >= QUIET_S:
                self._record(self._stuck.state, native=True)

    def _see(self) -> bool:
        """Read what the health service says of the server; False if that is known already."""
        file = told.file(self._log)
        try:
            status = file.lstat()
            seen = (status.st_ino, status.st_mtime_ns)
        except OSError:
            self._seen = self._stuck = None
            return False
        if seen == self._seen:
            return False
        self._seen = seen
        stuck = told.read(file)
        # A file of before this start is of another server.
        self._stuck = stuck if stuck is not None and stuck.at >= self._began else None
        return True

    def _record(self, why: str, native: bool, then: Callable[[], None] = lambda: None) -> None:
        """One flight; `then` is called as soon as the stacks are taken, whatever comes of them."""
        stuck, signs = self._stuck, tuple(self._signs())
        try:
            named = [p for p in signs[-1].processes if p.pid] if signs else []
            taken = stacks.take(named, native, lambda: self._holding and native)
        finally:
            then()
        if stuck is None:
            return
        self._recorded[why] = time.monotonic()
        content = {
            "schema": SCHEMA,
            "why": why,
            "code": stuck.code,
            "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "monotonic_s": time.monotonic(),
            "processes": [stack_as_json(stack) for stack in taken],
            "verdict": self._redaction.clean({**stuck.content, "boot": ""}),
            "log": lines.tail(self._log, self._redaction),
        }
        self._write(name_of(datetime.now(UTC), why, stuck.code), _packed(content, signs))

    def _write(self, name: str, data: bytes) -> None:
        """Put an archive in place, readable for the health service's user, and take the oldest."""
        folder = self._log.with_name(FOLDER)
        try:
            write_whole(folder / name, data, MODE)
        except OSError as e:
            print(f"flights: {folder / name}: {e.strerror}; it is lost", file=sys.stderr)
            return
        print(f"flights: {folder / name} tells what the server was doing", file=sys.stderr)
        for old in listed(folder)[KEPT:]:
            old.path.unlink(missing_ok=True)


def _packed(content: dict[str, Any], signs: Sequence[Signs]) -> bytes:
    """The archive's bytes; of more signs than fit the older half is left out, again and again."""
    kept = [asdict(each) for each in signs]
    while True:
        raw = json.dumps({**content, "signs": kept}, allow_nan=False).encode()
        if len(raw) <= LIMIT_BYTES or not kept:
            return gzip.compress(raw)
        kept = kept[(len(kept) + 1) // 2 :]


@contextlib.contextmanager
def recording(
    server: subprocess.Popen[bytes], log: Path, environ: Mapping[str, str] = os.environ
) -> Iterator[Recorder | None]:
    """Vital signs beside `log` meanwhile, and flights, as far as they can be had."""
    with watching(server, log) as writer:
        made: Recorder | None = None
        if writer is not None:
            try:
                made = Recorder(server, log, writer.kept, environ)
                made.start()
            except (OSError, RuntimeError) as e:
                print(f"flights: {e}; none is recorded", file=sys.stderr)
                made = None
        try:
            yield made
        finally:
            if made is not None:
                made.end()
