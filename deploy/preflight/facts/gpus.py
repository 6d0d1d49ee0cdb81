"""The GPUs as the driver shows them in sysfs (Documentation/ABI, drivers/gpu/drm/amd)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass

from deploy.preflight.facts.reading import attempt, number, read_number, read_word, shown
from deploy.preflight.findings import Unknown
from deploy.preflight.host import Host

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
# Variables that narrow the GPUs of a process; the smallest set counts (ROCm's documentation).
NARROWING = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_PARTITION = re.compile(r"[A-Z]{3}")


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
    return read_word(host, path, _PARTITION)


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
