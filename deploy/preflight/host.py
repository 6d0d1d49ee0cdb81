"""The one way from preflight to a machine."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.addresses import to_bind

# No file below /sys or /proc that is read here is longer; a longer one is not what it seems.
TEXT_LIMIT = 1 << 20

# AMD's tool gives its own question to the exporter half a minute; a start is not held up so long.
TOOL_S = 10.0


@dataclass(frozen=True)
class FileStat:
    """What stat tells: numeric owner and group, size in bytes, time of change (Unix seconds)."""

    mode: int
    uid: int
    gid: int
    size: int
    mtime: float

    @property
    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return stat.S_ISDIR(self.mode)


@dataclass(frozen=True)
class Disk:
    """A mounted file system: bytes in all, and bytes that this user may still write."""

    total: int
    free: int


@dataclass(frozen=True)
class SmiGpu:
    """One GPU as AMD's own library names it; memory in bytes, None where it does not say."""

    name: str
    vram_total: int | None = None
    vram_used: int | None = None


@dataclass(frozen=True)
class Told:
    """What a program said: its exit code, None where it has none, and its output or what stood in
    the way."""

    code: int | None
    text: str


class Host:
    """The machine, or container, that this process runs in. Paths are absolute; every method may
    raise OSError."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = dict(os.environ if environ is None else environ)

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment that the server would start in."""
        return self._environ

    def read_text(self, path: str) -> str:
        """The first TEXT_LIMIT bytes of a file; what is not UTF-8 is replaced."""
        return self.read_start(path, TEXT_LIMIT).decode("utf-8", "replace")

    def read_start(self, path: str, count: int) -> bytes:
        """At most the first `count` bytes of a file."""
        with Path(path).open("rb") as file:
            return file.read(count)

    def list_dir(self, path: str) -> list[str]:
        """Sorted names in a folder."""
        return sorted(entry.name for entry in Path(path).iterdir())

    def stat(self, path: str) -> FileStat:
        """Owner, size and times, of the target where the path is a link."""
        seen = Path(path).stat()
        return FileStat(seen.st_mode, seen.st_uid, seen.st_gid, seen.st_size, seen.st_mtime)

    def open_rw(self, path: str) -> None:
        """Open as the ROCm runtime opens /dev/kfd, and close; writes nothing."""
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def may_write(self, path: str) -> bool:
        """Whether this process could make a file in a folder that exists."""
        return os.access(path, os.W_OK | os.X_OK)

    def disk(self, path: str) -> Disk:
        """The file system that holds a path which exists."""
        seen = os.statvfs(path)
        return Disk(seen.f_frsize * seen.f_blocks, seen.f_frsize * seen.f_bavail)

    def port_free(self, address: str, port: int) -> bool:
        """Whether a TCP server could listen there now: binds as the server will, and lets go."""
        address = to_bind(address)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            address.encode("idna")  # bind raises TypeError for a name that cannot be looked up
            try:
                server.bind((address, port))
                server.listen(1)
            except OSError as e:
                if e.errno == errno.EADDRINUSE:
                    return False
                raise
        return True

    def package_dir(self, name: str) -> str | None:
        """The folder of an importable Python package, which is not imported."""
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            return None
        places = list(spec.submodule_search_locations or ()) if spec else []
        return places[0] if places else None

    def gpu_library(self) -> tuple[SmiGpu, ...] | None:
        """What amdsmi says, None where it is not installed or fails; files tell the rest."""
        try:
            import amdsmi  # type: ignore[import-not-found,unused-ignore]
        except (ImportError, OSError, KeyError):  # its import loads librocm_smi and reads ROCM_PATH
            return None
        try:
            amdsmi.amdsmi_init()
        except Exception:  # AmdSmiException and its kin derive from Exception, nothing nearer
            return None
        try:
            return tuple(_smi_gpu(amdsmi, h) for h in amdsmi.amdsmi_get_processor_handles())
        except Exception:
            return None
        finally:
            amdsmi.amdsmi_shut_down()

    def amdgpuhealth(self, query: str, seconds: float = TOOL_S) -> Told | None:
        """What AMD's tool of that name says in so many seconds, None where it is not on PATH."""
        program = shutil.which("amdgpuhealth", path=self._environ.get("PATH", os.defpath))
        if program is None:
            return None
        try:
            ended = subprocess.run(
                [program, *query.split()],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=self._environ,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Told(None, f"no answer in {seconds:g} s")
        except OSError as e:
            return Told(None, e.strerror or type(e).__name__)
        return Told(ended.returncode, (ended.stdout or ended.stderr).decode("utf-8", "replace"))

    def hostname(self) -> str:
        """The name other hosts and lock files know this one by."""
        return socket.gethostname()

    def pid_namespace(self) -> str:
        """The PID namespace of this process, as the kernel names it."""
        return str(Path("/proc/self/ns/pid").readlink())

    def is_locked(self, path: str) -> bool:
        """Whether another process holds a file locked with flock, so that none can share it."""
        with Path(path).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def now(self) -> float:
        """Seconds since 1970, which file times are in."""
        return time.time()

    def pause(self, seconds: float) -> None:
        """Let time pass, for what is read twice."""
        time.sleep(seconds)


def _smi_gpu(library: Any, handle: Any) -> SmiGpu:
    """One processor, asked as amdsmi's Python interface documents it; it counts memory in MiB."""
    name = str(library.amdsmi_get_gpu_asic_info(handle).get("market_name", ""))
    memory = library.amdsmi_get_gpu_vram_usage(handle)
    return SmiGpu(name, _mebibytes(memory.get("vram_total")), _mebibytes(memory.get("vram_used")))


def _mebibytes(value: Any) -> int | None:
    return value << 20 if isinstance(value, int) and value >= 0 else None
