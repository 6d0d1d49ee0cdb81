"""The locks of AITER's build: their age, and whether who holds one still runs."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.preflight.facts.reading import attempt, names_in, number
from deploy.preflight.findings import Unknown
from deploy.preflight.host import Host


@dataclass(frozen=True)
class Lock:
    """A lock of AITER's build: its age in seconds; pid and host as it names them, if it does.

    `owner_alive` is known only where the lock tells who that is: the newest AITER (PR 5269) names
    the owner's PID namespace and start too, and holds the file locked as long as the owner runs.
    Host name and pid alone are also another container's.
    """

    path: str
    age: float
    pid: int | None
    host: str | None
    owner_alive: bool | None


def aiter_folders(host: Host) -> list[str]:
    """Where AITER may build: the folders its releases have read, and its package."""
    home = host.environ.get("HOME", "/")
    package = host.package_dir("aiter")
    candidates = [
        host.environ.get("AITER_JIT_DIR"),
        host.environ.get("JIT_WORKSPACE_DIR"),  # the name before AITER_JIT_DIR
        f"{package}/jit" if package else None,
        f"{home}/.aiter/jit",
    ]
    return [folder for folder in dict.fromkeys(candidates) if folder]


def read_locks(host: Host) -> tuple[Lock, ...]:
    """Every lock below AITER's build folders: one a module, one a build, ninja's own."""
    found: list[Lock] = []
    for top in aiter_folders(host):
        build = f"{top}/build"
        modules = [f"{build}/{name}" for name in names_in(host, build)]
        for folder in [top, build, *modules, *(f"{m}/build" for m in modules)]:
            for name in names_in(host, folder):
                if name.startswith("lock") or name.endswith((".lock", ".ninja_lock")):
                    lock = read_lock(host, f"{folder}/{name}")
                    if lock:
                        found.append(lock)
    return tuple(found)


def read_lock(host: Host, path: str) -> Lock | None:
    """A lock file; newer AITER writes pid and host name into it, the newest three lines more."""
    try:
        seen = host.stat(path)
        lines = [] if seen.is_dir else host.read_text(path).splitlines()
    except OSError:  # released meanwhile
        return None
    if seen.is_dir:
        return None
    pid = number(lines[0]) if len(lines) > 1 else None
    owner, namespace, started, way = (line.strip() for line in [*lines, *[""] * 5][1:5])
    alive = None
    if pid is not None and owner == host.hostname():
        alive = is_owner_alive(host, path, pid, namespace, started, way)
    return Lock(path, host.now() - seen.mtime, pid, owner if pid is not None else None, alive)


def is_owner_alive(
    host: Host, path: str, pid: int, namespace: str, started: str, way: str
) -> bool | None:
    """Whether a lock's owner on this host runs; None where the lock does not say who it is.

    `way` "flock": the kernel tells, in every namespace. Else the pid means its owner in the PID
    namespace that the lock names, while the process with it has the start that it names.
    """
    if way == "flock":
        held = attempt(path, lambda: host.is_locked(path))
        return None if isinstance(held, Unknown) else held
    own = attempt("/proc/self/ns/pid", host.pid_namespace)
    if not namespace or not started or namespace != own:
        return None
    return process_start(host, pid) == started


def process_start(host: Host, pid: int) -> str | None:
    """When a process began, in ticks since boot; None for one that has ended, reaped or not."""
    try:
        text = host.read_text(f"/proc/{pid}/stat")
    except OSError:
        return None
    words = text.rpartition(")")[2].split()  # from the third on, the state
    return words[19] if len(words) > 19 and words[0] != "Z" else None
