"""What this process may: its user, devices, ports and limits (proc(5), cgroups)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from deploy.preflight.facts.reading import attempt, number, read_number, shown
from deploy.preflight.findings import Unknown
from deploy.preflight.host import Host

# cgroup v1 writes the largest multiple of its page size for "no limit".
CGROUP_1_NO_LIMIT = 1 << 62
_LIMIT = re.compile(
    r"^(Max locked memory|Max stack size)[ \t]+(unlimited|[0-9]{1,20})[ \t]", re.MULTILINE
)
_STATUS = re.compile(r"^(Uid|Gid|Groups):[ \t]*([0-9 \t]*)$", re.MULTILINE)


@dataclass(frozen=True)
class Device:
    """A device node: the error of opening it for reading and writing (an errno name), its group."""

    path: str
    error: str | None
    gid: int | Unknown


@dataclass(frozen=True)
class Process:
    """Numeric user and groups of this process, primary and supplementary."""

    uid: int
    groups: frozenset[int]


@dataclass(frozen=True)
class Port:
    """A TCP port that will be listened on."""

    role: str
    number: int
    free: bool | Unknown


def read_device(host: Host, path: str) -> Device:
    """Open a device as the runtime will."""
    gid = attempt(path, lambda: host.stat(path).gid)
    try:
        host.open_rw(path)
    except OSError as e:
        return Device(path, e.strerror or type(e).__name__, gid)
    return Device(path, None, gid)


def read_process(host: Host) -> Process | Unknown:
    """Effective user and all groups, of /proc/self/status."""
    path = "/proc/self/status"
    text = attempt(path, lambda: host.read_text(path))
    if isinstance(text, Unknown):
        return text
    found = {
        m[1]: [n for word in m[2].split() if (n := number(word)) is not None]
        for m in _STATUS.finditer(text)
    }
    if len(found.get("Uid", ())) < 2 or len(found.get("Gid", ())) < 2:
        return Unknown(f"{path}: no Uid and Gid lines")
    return Process(found["Uid"][1], frozenset([found["Gid"][1], *found.get("Groups", ())]))


def read_limits(host: Host) -> dict[str, float | Unknown]:
    """Soft limits in bytes, infinity for unlimited."""
    path = "/proc/self/limits"
    text = attempt(path, lambda: host.read_text(path))
    if isinstance(text, Unknown):
        return {"Max locked memory": text, "Max stack size": text}
    return {m[1]: float("inf" if m[2] == "unlimited" else m[2]) for m in _LIMIT.finditer(text)}


def read_memory_limit(host: Host) -> float | Unknown:
    """Bytes that this container may use, infinity without a limit: cgroup v2's memory.max, or
    memory.limit_in_bytes where the host is still on v1."""
    path, older = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"
    text = attempt(path, lambda: host.read_text(path))
    if isinstance(text, Unknown):
        limit = read_number(host, older)
        if isinstance(limit, Unknown):
            return text
        return float("inf") if limit >= CGROUP_1_NO_LIMIT else float(limit)
    if text.strip() == "max":
        return float("inf")
    value = number(text)
    return Unknown(f"{path}: holds {shown(text)}") if value is None else float(value)


def read_port(host: Host, role: str, address: str, port: int) -> Port:
    """Try to listen."""
    return Port(role, port, attempt(f"port {port}", lambda: host.port_free(address, port)))
