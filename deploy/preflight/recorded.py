"""A machine written down: a folder of its files, with notes of what files cannot hold."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any

from deploy.files import read_text
from deploy.preflight.host import TEXT_LIMIT, Disk, FileStat, SmiGpu, Told

NOTES_LIMIT = 16 << 20


class RecordedHost:
    """A machine written down: files below `tree`, and `host.json` for what files cannot hold.

    The keys of host.json, all optional: `environ`, `hostname`, `pid_namespace`, `now`; `locked`
    files, which another process holds; `stat` of a path (`mode`,
    `uid`, `gid`, `size`, `mtime`); `errors` (path to errno name, for open, read and list);
    `read_only` folders; `disks` (mount point to `total` and `free` bytes); `busy_ports`;
    `packages` (name to folder); `gpu_library` (list of `name`, `vram_total`, `vram_used`);
    `amdgpuhealth` (query to `code` and `text`); `later` (path to the text that a file has after a
    pause).
    Raises ValueError for what is no such folder.
    """

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        notes = tree / "host.json"
        self._is_later = False
        if not tree.is_dir():
            raise ValueError(f"{tree}: is not a recorded machine; give a folder with host.json")
        self.notes = _read_notes(notes) if notes.exists() else {}

    @property
    def environ(self) -> Mapping[str, str]:
        """The recorded environment."""
        return dict(self.notes.get("environ", {}))

    def read_text(self, path: str) -> str:
        """Read a recorded file."""
        return self.read_start(path, TEXT_LIMIT).decode("utf-8", "replace")

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

    def port_free(self, address: str, port: int) -> bool:  # noqa: ARG002 - the protocol's
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

    def pause(self, seconds: float) -> None:  # noqa: ARG002 - the protocol's
        """It is later from now on."""
        self._is_later = True

    def _at(self, path: str, opening: bool = True) -> Path:
        noted = self.notes.get("errors", {}).get(path)
        if opening and noted:
            code = getattr(errno, noted)
            raise OSError(code, os.strerror(code), path)
        return self.tree / path.lstrip("/")


def _read_notes(path: Path) -> dict[str, Any]:
    """The notes of a recorded machine. Raises OSError, or ValueError in one line."""
    fix = "give notes as RecordedHost tells them"
    try:
        notes = json.loads(read_text(path, NOTES_LIMIT))
    except (ValueError, RecursionError) as e:
        raise ValueError(f"{path}: is not JSON ({str(e)[:80]}); {fix}") from e
    if not isinstance(notes, dict):
        raise ValueError(f"{path}: is no table; {fix}")
    for name, noted in notes.items():
        kind, holds = _NOTES.get(name, (type(None), bool))
        inner = noted.values() if isinstance(noted, dict) else noted
        is_fit = isinstance(noted, kind) and name in _NOTES
        if not is_fit or (isinstance(noted, dict | list) and not all(map(holds, inner))):
            raise ValueError(f"{path}: {name}: got {json.dumps(noted)[:80]}; {fix}")
    return notes


def _is_table_of(value: Any, kind: type | UnionType, names: str) -> bool:
    return isinstance(value, dict) and all(
        name in names.split() and isinstance(inner, kind) for name, inner in value.items()
    )


def _is_told(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"code", "text"}
        and isinstance(value["code"], int | None)
        and isinstance(value["text"], str)
    )


# What the notes may hold: a type, and of tables and lists also what each value in them is.
_NOTES: Mapping[str, tuple[type | UnionType, Callable[[Any], bool]]] = {
    "environ": (dict, lambda value: isinstance(value, str)),
    "hostname": (str, bool),
    "pid_namespace": (str, bool),
    "locked": (list, lambda value: isinstance(value, str)),
    "now": (int | float, bool),
    "stat": (dict, lambda value: _is_table_of(value, int | float, "mode uid gid size mtime")),
    "errors": (dict, lambda value: isinstance(value, str) and hasattr(errno, value)),
    "read_only": (list, lambda value: isinstance(value, str)),
    "disks": (dict, lambda value: _is_table_of(value, int, "total free") and len(value) == 2),
    "busy_ports": (list, lambda value: isinstance(value, int)),
    "packages": (dict, lambda value: isinstance(value, str | None)),
    "gpu_library": (list, lambda value: _is_smi_gpu(value)),
    "amdgpuhealth": (dict, lambda value: _is_told(value)),
    "later": (dict, lambda value: isinstance(value, str)),
}


def _is_smi_gpu(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return False
    rest = {name: inner or 0 for name, inner in value.items() if name != "name"}
    return _is_table_of(rest, int, "vram_total vram_used")
