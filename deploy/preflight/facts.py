"""What preflight knows about a machine, gathered once and frozen.

Formats are those of the kernel (Documentation/ABI, drivers/gpu/drm/amd), of proc(5) and of AITER's
lock files. What cannot be read or makes no sense becomes `Unknown`; nothing here raises for it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from deploy.preflight.findings import Unknown
from deploy.preflight.host import Disk, Host, SmiGpu, Told

KFD = "/dev/kfd"
NODES = "/sys/class/kfd/kfd/topology/nodes"

# Heaps of a KFD memory bank that are the card's own: HSA_MEM_HEAP_TYPE_FB_PUBLIC and _FB_PRIVATE
# of the kernel's kfd_topology.h; the others are the host's memory, scratch and LDS.
CARD_HEAPS = (1, 2)

# PCI device ids of the cards there are profiles for, virtual functions too (amdgpu.ids of libdrm).
CARDS: Mapping[int, str] = {
    0x74A1: "MI300X",
    0x74A2: "MI308X",
    0x74A5: "MI325X",
    0x74A8: "MI308X",
    0x74B5: "MI300X",
    0x74B6: "MI308X",
    0x74B9: "MI325X",
    0x75A0: "MI350X",
    0x75A3: "MI355X",
    0x75B0: "MI350X",
    0x75B3: "MI355X",
}

# A card that nobody uses shows about 0.3 GB in use (public MI355X sysfs captures). Where more is in
# use it is read again after a while: an ended process gives its memory back over seconds.
IDLE_VRAM = 2 * 10**9
SETTLE_S = 0.5
# cgroup v1 writes the largest multiple of its page size for "no limit".
CGROUP_1_NO_LIMIT = 1 << 62

# Variables that narrow the GPUs of a process; the smallest set counts (ROCm's documentation).
NARROWING = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")

# What AMD's tool is asked: errors that ECC could not correct, and RAS records of fatal ones.
QUERIES = (
    "query counter-metric -m GPU_ECC_UNCORRECT_TOTAL -t 0",
    "query inband-ras-errors -s CPER_SEVERITY_FATAL -t 0",
)

_LIMIT = re.compile(
    r"^(Max locked memory|Max stack size)[ \t]+(unlimited|[0-9]{1,20})[ \t]", re.MULTILINE
)
_STATUS = re.compile(r"^(Uid|Gid|Groups):[ \t]*([0-9 \t]*)$", re.MULTILINE)
_NUMBER = re.compile(r"[0-9]{1,20}")
_VERSION = re.compile(r"[0-9]+(\.[0-9A-Za-z]+)*([-+~][0-9A-Za-z.~+-]+)?")
_PARTITION = re.compile(r"[A-Z]{3}")

T = TypeVar("T")


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
class Gpu:
    """One GPU, or one partition of it, as the driver shows it; memory in bytes.

    `partition` is the compute mode (SPX, DPX, QPX, CPX), `dies` the XCDs that belong to it.
    """

    node: str
    arch: str | Unknown
    compute_units: int | Unknown
    memory: int | Unknown
    vram_total: int | Unknown
    vram_used: int | Unknown
    vram_before: int | None  # SETTLE_S before `vram_used` was read, None: it was read once
    partition: str | Unknown
    dies: int | Unknown
    card: str | None
    render: str | None


@dataclass(frozen=True)
class Gpus:
    """The GPUs in the driver's topology; `withheld` nodes belong to other containers."""

    found: tuple[Gpu, ...]
    unreadable: tuple[str, ...]
    withheld: int


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


@dataclass(frozen=True)
class Cache:
    """A folder of compiled things: who may write it, for what it was made, if that is known."""

    kind: str
    path: str
    writable: bool | Unknown
    disk: Disk | Unknown
    filled: bool
    made_for: Mapping[str, str] | Unknown | None


@dataclass(frozen=True)
class Port:
    """A TCP port that will be listened on."""

    role: str
    number: int
    free: bool | Unknown


@dataclass(frozen=True)
class Machine:
    """Everything about the machine that no profile changes."""

    kfd: Device
    renders: tuple[Device, ...]
    process: Process | Unknown
    gpus: Gpus | Unknown
    library: tuple[SmiGpu, ...] | None
    amdgpuhealth: Mapping[str, Told]  # answers by query; empty where it is not installed
    visible: int | Unknown | None
    shm: Disk | Unknown
    memory_limit: float | Unknown
    memlock: float | Unknown
    stack: float | Unknown
    numa_balancing: int | Unknown
    kernel_words: tuple[str, ...] | Unknown
    has_iommu: bool | Unknown
    driver: str | Unknown
    rocm: str | Unknown
    locks: tuple[Lock, ...]
    hostname: str


def gather(host: Host) -> Machine:
    """Read the machine."""
    gpus = settled(host, read_gpus(host))
    found = gpus.found if isinstance(gpus, Gpus) else ()
    # AMD's library takes up to a second to start: it is asked for what the files did not tell.
    is_short = any(isinstance(g.vram_used, Unknown) or g.card is None for g in found)
    limits = read_limits(host)
    return Machine(
        kfd=read_device(host, KFD),
        renders=tuple(read_device(host, f"/dev/dri/{g.render}") for g in found if g.render),
        process=read_process(host),
        gpus=gpus,
        library=host.gpu_library() if is_short else None,
        amdgpuhealth={q: told for q in QUERIES if (told := host.amdgpuhealth(q)) is not None},
        visible=read_visible(host.environ),
        shm=attempt("/dev/shm", lambda: host.disk("/dev/shm")),  # noqa: S108 - read, not written
        memory_limit=read_memory_limit(host),
        memlock=limits.get("Max locked memory", Unknown("/proc/self/limits: no such line")),
        stack=limits.get("Max stack size", Unknown("/proc/self/limits: no such line")),
        numa_balancing=read_number(host, "/proc/sys/kernel/numa_balancing"),
        kernel_words=attempt(
            "/proc/cmdline", lambda: tuple(host.read_text("/proc/cmdline").split())
        ),
        has_iommu=attempt("/sys/class/iommu", lambda: bool(host.list_dir("/sys/class/iommu"))),
        driver=read_version(host, "/sys/module/amdgpu/version"),
        rocm=read_version(host, f"{host.environ.get('ROCM_PATH', '/opt/rocm')}/.info/version"),
        locks=read_locks(host),
        hostname=host.hostname(),
    )


def attempt(what: str, read: Callable[[], T]) -> T | Unknown:
    """What `read` returns; an OSError becomes Unknown."""
    try:
        return read()
    except OSError as e:
        return Unknown(f"{what}: {e.strerror or type(e).__name__}")
    except (ValueError, OverflowError) as e:  # a path with a NUL byte, a port past 65535
        return Unknown(f"{what}: {e}")


def number(text: str) -> int | None:
    """An unsigned 64-bit decimal number, as the kernel prints one; else None."""
    text = text.strip()
    if not _NUMBER.fullmatch(text) or int(text) >= 1 << 64:
        return None
    return int(text)


def read_number(host: Host, path: str) -> int | Unknown:
    """A file that holds one number."""
    text = attempt(path, lambda: host.read_text(path))
    if isinstance(text, Unknown):
        return text
    value = number(text)
    return Unknown(f"{path}: holds {shown(text)}") if value is None else value


def read_version(host: Host, path: str) -> str | Unknown:
    """A file that holds one version."""
    text = attempt(path, lambda: host.read_text(path))
    if isinstance(text, Unknown):
        return text
    text = text.strip()
    return text if _VERSION.fullmatch(text) else Unknown(f"{path}: holds {shown(text)}")


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


def settled(host: Host, gpus: Gpus | Unknown) -> Gpus | Unknown:
    """The same GPUs with their memory in use read again, if there is any to speak of."""
    if isinstance(gpus, Unknown) or not any(
        isinstance(gpu.vram_used, int) and gpu.vram_used > IDLE_VRAM for gpu in gpus.found
    ):
        return gpus
    host.pause(SETTLE_S)
    return dataclasses.replace(gpus, found=tuple(_again(host, gpu) for gpu in gpus.found))


def _again(host: Host, gpu: Gpu) -> Gpu:
    if isinstance(gpu.vram_used, Unknown):
        return gpu
    path = f"/sys/class/drm/{gpu.render}/device/mem_info_vram_used"
    return dataclasses.replace(gpu, vram_used=read_number(host, path), vram_before=gpu.vram_used)


def read_gpus(host: Host) -> Gpus | Unknown:
    """The GPUs in the KFD topology.

    Reading a node of a GPU that the device cgroup withholds gives EPERM (the kernel's
    kfd_topology.c), which is another container's GPU rather than a fault.
    """
    names = attempt(NODES, lambda: host.list_dir(NODES))
    if isinstance(names, Unknown):
        return names
    found: list[Gpu] = []
    unreadable: list[str] = []
    withheld = 0
    for name in sorted((n for n in names if n.isascii() and n.isdigit()), key=int):
        path = f"{NODES}/{name}/properties"
        try:
            properties = read_properties(host.read_text(path))
        except PermissionError:
            withheld += 1
            continue
        except OSError:
            properties = {}
        simds = properties.get("simd_count")
        if simds is None:
            unreadable.append(path)
        elif simds > 0:
            found.append(read_gpu(host, name, properties))
    return Gpus(tuple(found), tuple(unreadable), withheld)


def read_gpu(host: Host, node: str, properties: Mapping[str, int]) -> Gpu:
    """One GPU, from its KFD node and the folder of its render node."""

    def have(name: str) -> int | Unknown:
        return properties.get(name, Unknown(f"{NODES}/{node}/properties: no {name}"))

    simds, per_unit = have("simd_count"), have("simd_per_cu")
    units: int | Unknown
    if isinstance(simds, Unknown) or isinstance(per_unit, Unknown):
        units = simds if isinstance(simds, Unknown) else per_unit
    elif per_unit < 1 or simds % per_unit:
        units = Unknown(f"{NODES}/{node}/properties: simd_count {simds}, simd_per_cu {per_unit}")
    else:
        units = simds // per_unit
    version = have("gfx_target_version")
    minor = properties.get("drm_render_minor", 0)
    render = f"renderD{minor}" if 128 <= minor < 1 << 20 else None
    device = f"/sys/class/drm/{render}/device"
    return Gpu(
        node=node,
        arch=version if isinstance(version, Unknown) else arch_name(version),
        compute_units=units,
        memory=read_memory(host, node),
        vram_total=read_number(host, f"{device}/mem_info_vram_total"),
        vram_used=read_number(host, f"{device}/mem_info_vram_used"),
        vram_before=None,
        partition=read_partition(host, f"{device}/current_compute_partition"),
        dies=have("num_xcc"),
        card=CARDS.get(properties.get("device_id", 0)),
        render=render,
    )


def arch_name(version: int) -> str | Unknown:
    """The gfx name of a KFD gfx_target_version: 90402 is gfx942, 90010 gfx90a."""
    major, minor, step = version // 10000, version // 100 % 100, version % 100
    if not 1 <= major <= 99 or minor > 15 or step > 15:
        return Unknown(f"gfx_target_version {version}")
    return f"gfx{major}{minor:x}{step:x}"


def read_properties(text: str) -> dict[str, int]:
    """The `name number` lines of a KFD properties file; other lines are passed over."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        value = number(rest)
        if value is not None and name.isidentifier():
            found[name] = value
    return found


def read_memory(host: Host, node: str) -> int | Unknown:
    """Bytes of the card's own memory: the sum of its banks."""
    banks = f"{NODES}/{node}/mem_banks"
    names = attempt(banks, lambda: host.list_dir(banks))
    if isinstance(names, Unknown):
        return names
    total = 0
    for name in names:
        path = f"{banks}/{name}/properties"
        text = attempt(path, lambda path=path: host.read_text(path))  # type: ignore[misc]
        if isinstance(text, Unknown):
            return text
        bank = read_properties(text)
        if "heap_type" not in bank or "size_in_bytes" not in bank:
            return Unknown(f"{path}: no heap_type and size_in_bytes")
        if bank["heap_type"] in CARD_HEAPS:
            total += bank["size_in_bytes"]
    return total or Unknown(f"{banks}: no bank of the card's own memory")


def read_partition(host: Host, path: str) -> str | Unknown:
    """The compute partition mode, as SPX."""
    text = attempt(path, lambda: host.read_text(path))
    if isinstance(text, Unknown):
        return text
    text = text.strip()
    return text if _PARTITION.fullmatch(text) else Unknown(f"{path}: holds {shown(text)}")


def read_visible(environ: Mapping[str, str]) -> int | Unknown | None:
    """How many GPUs the environment leaves to the process, None when it does not narrow them."""
    counts: list[int] = []
    for name in NARROWING:
        if name not in environ:
            continue
        words = [w.strip() for w in environ[name].split(",") if w.strip()]
        if not all(w.isascii() and (w.isdigit() or w.startswith("GPU-")) for w in words):
            if words[0] != "-1":
                return Unknown(f"{name}: holds {shown(environ[name])}")
            words = []
        counts.append(len(words))
    return min(counts, default=None)


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


def names_in(host: Host, folder: str) -> list[str]:
    """The names in a folder, none when it cannot be listed."""
    names = attempt(folder, lambda: host.list_dir(folder))
    return [] if isinstance(names, Unknown) else names


def nearest_folder(host: Host, path: str) -> str:
    """The path, or the closest folder above it that is there."""
    while path not in ("/", ""):
        try:
            host.stat(path)
            return path
        except OSError:
            path = path.rpartition("/")[0]
    return "/"


def read_port(host: Host, role: str, address: str, port: int) -> Port:
    """Try to listen."""
    return Port(role, port, attempt(f"port {port}", lambda: host.port_free(address, port)))


def shown(text: str) -> str:
    """Something read, short enough for one line."""
    text = text.strip()
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
