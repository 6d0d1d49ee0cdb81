"""Machines written down, for preflight: a folder of their files, with notes of what files cannot hold.

They are CONSTRUCTED, not recorded on hardware ("unverified"): no MI-series host was at hand. Their
formats are the kernel's and proc(5)'s documented ones: KFD topology nodes (`name number` lines;
drivers/gpu/drm/amd/amdkfd/kfd_topology.c), amdgpu's sysfs files (mem_info_vram_*,
current_compute_partition), /proc/self/status, /proc/self/limits, /proc/cmdline. Figures of the
cards are from public captures where there are some: MI350X's node (ROCm/rocm-systems PR 10274:
simd_count 1024, simd_per_cu 4, num_xcc 8, device_id 30112, a bank of 309220868096 bytes), an idle
MI355X (299544576 of 308902100992 bytes of VRAM), the rest from AMD's data sheets.
"""

import errno
import json
import os
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy import recipe
from deploy.preflight.host import Disk, FileStat, Host, SmiGpu, Told

GIB = 1 << 30
NOW = 1_790_000_000.0
RENDER_GID = 109
HUB = "models/hub"

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max stack size            {stack:<20} unlimited            bytes
Max locked memory         {memlock:<20} {memlock:<20} bytes
Max open files            1048576              1048576              files
"""


@dataclass(frozen=True)
class Card:
    """A card as the driver shows it."""

    version: int
    device_id: int
    compute_units: int
    dies: int
    memory: int


CARDS = {
    "mi300x": Card(90402, 0x74A1, 304, 8, 192 * GIB - (16 << 20)),
    "mi308x": Card(90402, 0x74A2, 80, 4, 192 * GIB - (16 << 20)),
    "mi325x": Card(90402, 0x74A5, 304, 8, 256 * GIB - (16 << 20)),
    "mi355x": Card(90500, 0x75A3, 256, 8, 308_902_100_992),
}


class RecordedHost(Host):
    """A machine written down: files below `tree`, and `host.json` for what files cannot hold.

    The keys of host.json, all optional: `environ`, `hostname`, `pid_namespace`, `now`; `locked`
    files, which another process holds; `stat` of a path (`mode`,
    `uid`, `gid`, `size`, `mtime`); `errors` (path to errno name, for open, read and list);
    `read_only` folders; `disks` (mount point to `total` and `free` bytes); `busy_ports`;
    `packages` (name to folder); `gpu_library` (list of `name`, `vram_total`, `vram_used`);
    `amdgpuhealth` (query to `code` and `text`); `later` (path to the text that a file has after a
    pause).
    """

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        notes = tree / "host.json"
        self._is_later = False
        self.notes: dict[str, Any] = json.loads(notes.read_text()) if notes.exists() else {}

    @property
    def environ(self) -> Mapping[str, str]:
        """The recorded environment."""
        return dict(self.notes.get("environ", {}))

    def read_start(self, path: str, count: int) -> bytes:
        """Read the first bytes of a recorded file, or of what was noted for later."""
        noted = self.notes.get("later", {}).get(path) if self._is_later else None
        if noted is not None:
            return str(noted).encode()[:count]
        with self._at(path).open("rb") as file:
            return file.read(count)

    def list_dir(self, path: str) -> list[str]:
        """List a recorded folder."""
        return sorted(entry.name for entry in self._at(path).iterdir())

    def stat(self, path: str) -> FileStat:
        """What was noted of a path, over what its file in the tree says."""
        seen = self._at(path, opening=False).stat()
        noted = self.notes.get("stat", {}).get(path, {})
        return FileStat(
            noted.get("mode", seen.st_mode),
            noted.get("uid", 0),
            noted.get("gid", 0),
            noted.get("size", seen.st_size),
            noted.get("mtime", seen.st_mtime),
        )

    def open_rw(self, path: str) -> None:
        """Raises the recorded error, or that of a missing file."""
        self._at(path).stat()

    def may_write(self, path: str) -> bool:
        """Whether the folder is not among the read-only ones."""
        return path not in self.notes.get("read_only", [])

    def disk(self, path: str) -> Disk:
        """The recorded mount that is nearest above the path."""
        disks: dict[str, dict[str, int]] = self.notes.get("disks", {})
        above = [m for m in disks if path == m or path.startswith(m.rstrip("/") + "/")]
        if not above:
            raise FileNotFoundError(errno.ENOENT, "no disk was recorded", path)
        found = disks[max(above, key=len)]
        return Disk(found["total"], found["free"])

    def port_free(self, address: str, port: int) -> bool:
        """Whether the port was not noted as busy."""
        return port not in self.notes.get("busy_ports", [])

    def package_dir(self, name: str) -> str | None:
        """The noted folder of a package."""
        found = self.notes.get("packages", {}).get(name)
        return str(found) if found else None

    def gpu_library(self) -> tuple[SmiGpu, ...] | None:
        """What amdsmi was noted to say."""
        noted = self.notes.get("gpu_library")
        return None if noted is None else tuple(SmiGpu(**gpu) for gpu in noted)

    def pid_namespace(self) -> str:
        """The recorded namespace."""
        if "pid_namespace" not in self.notes:
            raise FileNotFoundError(errno.ENOENT, "no namespace was recorded")
        return str(self.notes["pid_namespace"])

    def is_locked(self, path: str) -> bool:
        """Whether the file is noted as locked."""
        self._at(path).stat()
        return path in self.notes.get("locked", [])

    def amdgpuhealth(self, query: str) -> Told | None:
        """What AMD's tool was noted to say."""
        noted = self.notes.get("amdgpuhealth", {}).get(query)
        return None if noted is None else Told(noted["code"], noted["text"])

    def hostname(self) -> str:
        """The recorded name."""
        return str(self.notes.get("hostname", "recorded"))

    def now(self) -> float:
        """The time of the recording; without one, now."""
        return float(self.notes.get("now", time.time()))

    def pause(self, seconds: float) -> None:
        """It is later from now on."""
        self._is_later = True

    def _at(self, path: str, opening: bool = True) -> Path:
        noted = self.notes.get("errors", {}).get(path)
        if opening and noted:
            code = getattr(errno, noted)
            raise OSError(code, os.strerror(code), path)
        return self.tree / path.lstrip("/")


@dataclass
class Tree:
    """A machine being written down: files at once, notes when `done`."""

    root: Path
    notes: dict[str, Any] = field(default_factory=dict)

    def write(self, path: str, text: str | bytes) -> Path:
        """Write a file at an absolute path of the machine."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return file

    def note(self, key: str, **values: Any) -> None:
        """Add to a table of host.json."""
        self.notes.setdefault(key, {}).update(values)

    def done(self) -> Path:
        """Write host.json; returns the folder."""
        self.write("/host.json", json.dumps(self.notes))
        return self.root


def gpu_host(root: Path, name: str, gpus: int = 8, mode: str = "SPX") -> Tree:
    """A healthy server with cards of one kind, prepared as the recipe asks."""
    tree = Tree(root)
    card = CARDS[name]
    linux(tree, groups=(0, 44, RENDER_GID), memlock="unlimited", stack=64 << 20)
    node(tree, 0, {"cpu_cores_count": 96, "simd_count": 0, "gfx_target_version": 0})
    parts = {"SPX": 1, "CPX": card.dies}[mode]
    for number in range(gpus * parts):
        partition(tree, number, card, parts, mode)
    device(tree, "/dev/kfd")
    tree.write("/sys/module/amdgpu/version", "6.16.6\n")
    tree.write("/opt/rocm/.info/version", "7.2.3-81\n")
    tree.write("/sys/class/iommu/ivhd0/devices/.keep", "")
    weights(tree)
    return tree


def partition(tree: Tree, number: int, card: Card, parts: int, mode: str) -> None:
    """One GPU, or one partition of one: KFD node, DRM folder, render node."""
    minor = 128 + number
    units = card.compute_units // parts
    node(
        tree,
        number + 1,
        {
            "cpu_cores_count": 0,
            "simd_count": units * 4,
            "mem_banks_count": 1,
            "simd_per_cu": 4,
            "gfx_target_version": card.version,
            "vendor_id": 4098,
            "device_id": card.device_id,
            "drm_render_minor": minor,
            "num_xcc": card.dies // parts,
        },
        card.memory // parts,
    )
    for link in (f"card{number + 1}", f"renderD{minor}"):
        folder = f"/sys/class/drm/{link}/device"
        tree.write(f"{folder}/vendor", "0x1002\n")
        tree.write(f"{folder}/mem_info_vram_total", f"{card.memory // parts}\n")
        tree.write(f"{folder}/mem_info_vram_used", "299544576\n")
        tree.write(f"{folder}/current_compute_partition", f"{mode}\n")
    device(tree, f"/dev/dri/renderD{minor}")


def laptop(root: Path) -> Tree:
    """A machine without an AMD GPU, a small disk and Linux's default limits."""
    tree = Tree(root)
    linux(tree, groups=(1000, 27), memlock=str(8 << 20), stack=8 << 20, words="quiet splash")
    tree.note("disks", **{"/": {"total": 500 * 10**9, "free": 60 * 10**9}})
    tree.write("/sys/class/iommu/.keep", "")
    return tree


def broken(root: Path) -> Tree:
    """An MI300X host on which a start would fail in many ways at once."""
    tree = gpu_host(root, "mi300x", gpus=1)
    linux(tree, groups=(1000,), memlock="65536", stack=8 << 20, words="quiet")
    tree.note("errors", **{"/dev/kfd": "EACCES", "/dev/dri/renderD128": "EACCES"})
    tree.note("disks", **{"/dev/shm": {"total": 64 << 20, "free": 64 << 20}})
    tree.note("environ", VLLM_PORT="tcp://10.0.0.7:8000", AITER_JIT_DIR="/cache/aiter")
    tree.notes["busy_ports"] = [8000]
    tree.notes["read_only"] = ["/cache/aiter"]
    tree.write("/proc/sys/kernel/numa_balancing", "1\n")
    tree.write("/sys/class/drm/renderD128/device/mem_info_vram_used", f"{180 * 10**9}\n")
    lock = "/cache/aiter/build/lock_module_moe"
    tree.write(lock, "4242\nnode-1\n")
    tree.note("stat", **{lock: {"mtime": NOW - 7200}})
    shard = next((root / HUB).rglob("model-00002-*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-3])
    return tree


def linux(
    tree: Tree,
    *,
    groups: tuple[int, ...],
    memlock: str,
    stack: int,
    words: str = "quiet iommu=pt amd_iommu=on",
) -> None:
    """What every machine has, with the settings that preflight reads."""
    listed = " ".join(map(str, groups))
    user = groups[0]
    ids = "\t".join([str(user)] * 4)
    tree.write(
        "/proc/self/status", f"Name:\tpython\nUid:\t{ids}\nGid:\t{ids}\nGroups:\t{listed} \n"
    )
    tree.write("/proc/self/limits", LIMITS.format(memlock=memlock, stack=stack))
    tree.write("/proc/cmdline", f"BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro {words}\n")
    tree.write("/proc/sys/kernel/numa_balancing", "0\n")
    tree.write("/sys/fs/cgroup/memory.max", "max\n")
    tree.notes |= {"hostname": "node-1", "now": NOW}
    tree.note("environ", HOME="/home/user", HF_HUB_CACHE=f"/{HUB}", HSA_ENABLE_IPC_MODE_LEGACY="1")
    tree.note(
        "disks",
        **{
            "/": {"total": 2 * 10**12, "free": 10**12},
            "/dev/shm": {"total": 64 * 10**9, "free": 64 * 10**9},
        },
    )


def node(tree: Tree, number: int, properties: Mapping[str, int], memory: int = 0) -> None:
    """One KFD topology node with the memory bank of a card (heap 1) or of the host (heap 0)."""
    folder = f"/sys/class/kfd/kfd/topology/nodes/{number}"
    text = "".join(f"{name} {value}\n" for name, value in properties.items())
    tree.write(f"{folder}/properties", text)
    bank = f"heap_type {int(memory > 0)}\nsize_in_bytes {memory or 512 * GIB}\nflags 0\n"
    tree.write(f"{folder}/mem_banks/0/properties", bank)


def device(tree: Tree, path: str) -> None:
    """A device node of the render group."""
    tree.write(path, "")
    tree.note("stat", **{path: {"mode": 0o020660, "gid": RENDER_GID}})


def weights(tree: Tree, shards: int = 3) -> Path:
    """A snapshot of the recipe's model at its revision, with tiny shards; returns its folder."""
    model = recipe.load().profile("mi355x").model
    folder = f"/{HUB}/models--{model.id.replace('/', '--')}/snapshots/{model.revision}"
    placed = {}
    for number in range(1, shards + 1):
        name = f"model-{number:05}-of-{shards:05}.safetensors"
        tensor = f"layers.{number}.weight"
        placed[tensor] = name
        tree.write(f"{folder}/{name}", safetensors({tensor: 16}))
    index = {"metadata": {"total_size": 16 * shards}, "weight_map": placed}
    tree.write(f"{folder}/model.safetensors.index.json", json.dumps(index))
    config = {"dspark_block_size": 5, "moe_intermediate_size": 2048}
    tree.write(f"{folder}/config.json", json.dumps(config))
    return tree.root / folder.lstrip("/")


def safetensors(tensors: Mapping[str, int]) -> bytes:
    """A whole file of zeros: tensor names with their bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end)
