#!/usr/bin/env python3
"""What stands around the entrypoint in a container: secrets that are files, and a copy of the log.

    launch.py [ARGUMENT...]

Runs docker/entrypoint.py with the arguments; docker/README.md says what is written beside the log
that DSPARK_LOG names. VLLM_API_KEY_FILE and HF_TOKEN_FILE name files whose one line becomes
VLLM_API_KEY and HF_TOKEN; an empty file sets nothing. Each start begins a new log and keeps the
last one that is not empty as FILE.1, as does a full one.
The exit code is the server's. Exit code 1 before it starts: a file cannot be read or written.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, BinaryIO

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from deploy.files import SecretError, read_secret, write_whole
from deploy.recipe import RecipeError, switches

# Imported where they are used: they need what vLLM brings along.
if TYPE_CHECKING:
    from graph_restarts import Restarts

    from healthcheck.flights.recorder import Recorder

ENTRYPOINT = Path(__file__).with_name("entrypoint.py")
SECRETS = ("VLLM_API_KEY", "HF_TOKEN")
LOG = "DSPARK_LOG"
# What docker/prove.py wrote when the image was built; elsewhere there is none.
PROVENANCE = Path(__file__).resolve().parent.parent / "provenance.json"

# A start logs well under 1 MB; this holds days of a chatty server, twice with FILE.1.
LOG_LIMIT_BYTES = 50_000_000
# How long what is left in the pipe is waited for once the server has ended.
LEFTOVER_S = 5.0
# How long a copy that could not be written is left alone.
RETRY_S = 5.0
_POLL_S = 0.2
_BLOCK_BYTES = 65536
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)


class LaunchError(RuntimeError):
    """The server may not start; the message is one line: the setting, the value seen, the fix."""


class LogFile:
    """The copy of the output: begun anew when made, rotated by its size. Raises LaunchError.

    A file that holds something becomes FILE.1 once its successor is written: a full disk costs what
    comes meanwhile, and nothing that was written before.
    """

    def __init__(
        self,
        path: Path,
        limit_bytes: int = LOG_LIMIT_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._gap = b""  # what tells the reader that something is missing
        self._retry_at = -math.inf
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._begin(b"")
        except OSError as e:
            fix = "give a file in a folder that can be written, or leave it unset"
            raise LaunchError(f"{LOG}: {path}: {e.strerror}; {fix}") from e

    def write(self, data: bytes) -> None:
        """Add to the copy. An error costs the copy what comes within RETRY_S, never the server."""
        if self._clock() < self._retry_at:
            return
        block = self._gap + data
        try:
            if os.fstat(self._file.fileno()).st_size < self._limit_bytes:
                write_all(self._file.fileno(), block)
            else:
                full, self._file = self._file, self._begin(block)
                full.close()
            self._gap = b""
        except OSError as e:
            self._gap = f"\nlaunch: output is missing here: {e.strerror}\n".encode()
            self._retry_at = self._clock() + RETRY_S

    def begin(self) -> None:
        """A file of its own for another start; what cannot be begun goes on in the present one."""
        with contextlib.suppress(OSError):
            done, self._file = self._file, self._begin(b"")
            done.close()

    def _begin(self, first: bytes) -> BinaryIO:
        """A file that holds `first`, put in the place of the present one."""
        if self.path.exists() and not self.path.is_file():
            # Renaming it would take a device, or a folder with all that is in it, from its place.
            raise OSError(errno.EINVAL, "is there and is no file", str(self.path))
        unfinished = self.path.with_name(f"{self.path.name}.new")
        unfinished.unlink(missing_ok=True)
        file = unfinished.open("ab", buffering=0)
        try:
            write_all(file.fileno(), first)
            if self.path.exists() and self.path.stat().st_size:
                self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            unfinished.replace(self.path)
        except OSError:
            file.close()
            unfinished.unlink(missing_ok=True)
            raise
        return file


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte; a disk that is filling up takes fewer at first. Raises OSError."""
    while data:
        data = data[os.write(descriptor, data) :]


def main(arguments: Sequence[str]) -> int:
    """Read the secrets, then become the entrypoint, or stand above it: to copy, to start again."""
    command = [sys.executable, str(ENTRYPOINT), *arguments]
    try:
        read_secrets(os.environ)
        path = os.environ.get(LOG)
        log = LogFile(Path(path)) if path else None
        restarts = restarts_of(arguments)
    except (LaunchError, RecipeError) as e:
        print(f"launch: {e}", file=sys.stderr)
        return 1
    if path:
        show_provenance(PROVENANCE, Path(path).parent)
    if log is None and restarts is None:
        os.execv(sys.executable, command)
    return run(command, log, restarts)


def restarts_of(arguments: Sequence[str]) -> Restarts | None:
    """What ends a start for a new one, None where nothing does. Raises RecipeError."""
    if not switches.graphs(os.environ) or (arguments and not arguments[0].startswith("-")):
        return None
    import graph_restarts

    return graph_restarts.allowed(os.environ)


def read_secrets(environ: MutableMapping[str, str]) -> None:
    """Fill NAME from the file that NAME_FILE names. Raises LaunchError."""
    for name in SECRETS:
        path = environ.pop(f"{name}_FILE", None)
        if not path:
            continue
        try:
            value = read_secret(Path(path))
        except OSError as e:
            raise LaunchError(
                f"{name}_FILE: {path}: {e.strerror}; mount a readable file, or leave it unset"
            ) from e
        except SecretError as e:
            raise LaunchError(f"{name}_FILE: {path}: {e}") from e
        if value:
            environ[name] = value


def show_provenance(source: Path, folder: Path) -> None:
    """Put a copy of `source` into `folder`, whole or not at all; without a source, none is left.

    A folder that cannot take it costs the copy, never the server.
    """
    copy = folder / source.name
    try:
        if source.exists():
            write_whole(copy, source.read_bytes(), 0o644)  # the health service is another user
        else:
            copy.unlink(missing_ok=True)  # of another image, whose volume this was
    except OSError as e:
        print(f"launch: {copy}: {e.strerror}; /report shows no provenance", file=sys.stderr)


class Signals:
    """Sends the signals of this process on to the server of the moment."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.server: subprocess.Popen[bytes] | None = None
        self.recorder: Recorder | None = None
        for number in _FORWARDED:
            signal.signal(number, self._forward)

    def _forward(self, number: int, _: FrameType | None) -> None:
        if number != signal.SIGUSR1:
            self.stopping.set()
        server = self.server
        if server is None:
            return
        if number == signal.SIGTERM and self.recorder is not None:
            self.recorder.before(lambda: server.send_signal(number))
        else:
            server.send_signal(number)


def run(command: Sequence[str], log: LogFile | None, restarts: Restarts | None) -> int:
    """Run `command` with its output copied, again for each start that was ended for a new one.

    Returns its exit code. This process stays in between, and does not exec, because a container
    ends with its main process: a copier beside the server would be killed before it wrote the last
    lines, which are those that tell why.
    """
    signals = Signals()
    while True:
        code = run_once(command, log, signals, restarts)
        if restarts is None or not restarts.again(signals.stopping):
            return code
        if log is not None:
            log.begin()


def run_once(
    command: Sequence[str], log: LogFile | None, signals: Signals, restarts: Restarts | None
) -> int:
    """One start, to its end; returns its exit code as a shell tells it."""
    # A group of its own where its end may have to be its workers' too.
    group = 0 if restarts else None
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=group
    )
    signals.server = server
    if signals.stopping.is_set():  # since the one before ended
        server.terminate()
    assert server.stdout is not None
    with (
        restarts.watching(server) if restarts else contextlib.nullcontext(),
        recorded(server, log.path) if log else contextlib.nullcontext() as recorder,
    ):
        signals.recorder = recorder
        copy_output(server, server.stdout, log)
        code = server.wait()
    return code if code >= 0 else 128 - code


def recorded(
    server: subprocess.Popen[bytes], log: Path
) -> contextlib.AbstractContextManager[Recorder | None]:
    """Vital signs and flights beside the log meanwhile; none without psutil, which vLLM brings
    along."""
    try:
        from healthcheck.flights.recorder import recording
    except ImportError as e:
        print(f"launch: {e.name}: is not installed; no vital signs are written", file=sys.stderr)
        return contextlib.nullcontext()
    return recording(server, log)


def copy_output(server: subprocess.Popen[bytes], pipe: IO[bytes], log: LogFile | None) -> None:
    """Copy until the pipe ends, or `LEFTOVER_S` after the server did.

    A stopped worker may outlive the server and hold the pipe open; the container must end all the
    same, or nothing restarts it.
    """
    until: float | None = None
    while until is None or time.monotonic() < until:
        if select.select([pipe], [], [], _POLL_S)[0]:
            data = os.read(pipe.fileno(), _BLOCK_BYTES)
            if not data:
                return
            with contextlib.suppress(OSError):  # nobody reads it, or it is a file on a full disk
                write_all(sys.stdout.fileno(), data)
            if log is not None:
                log.write(data)
        if until is None and server.poll() is not None:
            until = time.monotonic() + LEFTOVER_S


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
