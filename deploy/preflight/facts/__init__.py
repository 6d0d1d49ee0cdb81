"""What preflight knows about a machine, gathered once and frozen.

What cannot be read or makes no sense becomes `Unknown`; nothing here raises for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deploy.preflight.facts.gpus import Gpus, read_gpus, read_visible, settled
from deploy.preflight.facts.limits import (
    Device,
    Process,
    read_device,
    read_limits,
    read_memory_limit,
    read_process,
)
from deploy.preflight.facts.locks import Lock, read_locks
from deploy.preflight.facts.reading import attempt, read_number, read_version
from deploy.preflight.findings import Unknown
from deploy.preflight.host import Disk, Host, SmiGpu, Told

KFD = "/dev/kfd"

# What AMD's tool is asked: errors that ECC could not correct, and RAS records of fatal ones.
QUERIES = (
    "query counter-metric -m GPU_ECC_UNCORRECT_TOTAL -t 0",
    "query inband-ras-errors -s CPER_SEVERITY_FATAL -t 0",
)


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
