"""Folders of compiled kernels and graphs, and the note that says what they were made for.

AITER and Triton do not key everything they compile by vLLM release and GPU architecture, so a
volume carried to another image or card is found out by a note that the first start leaves in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.preflight.facts.locks import aiter_folders
from deploy.preflight.facts.reading import attempt, names_in, nearest_folder
from deploy.preflight.findings import Unknown
from deploy.preflight.host import Disk, Host
from deploy.preflight.weights import read_object

NOTE = ".dspark-made-for.json"


@dataclass(frozen=True)
class Cache:
    """A folder of compiled things: who may write it, for what it was made, if that is known."""

    kind: str
    path: str
    writable: bool | Unknown
    disk: Disk | Unknown
    filled: bool
    made_for: Mapping[str, str] | Unknown | None


def cache_folders(host: Host) -> dict[str, str]:
    """The folder of each cache, by the variables its owner reads."""
    environ = host.environ
    home = environ.get("HOME", "")
    base = environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
    chosen = [f for f in aiter_folders(host) if f == environ.get("AITER_JIT_DIR")]
    return {
        "vllm": environ.get("VLLM_CACHE_ROOT") or f"{base}/vllm",
        "aiter": chosen[0] if chosen else f"{home}/.aiter/jit",
        "triton": environ.get("TRITON_CACHE_DIR") or f"{home}/.triton/cache",
    }


def read_caches(host: Host) -> tuple[Cache, ...]:
    """Every cache folder."""
    return tuple(read_cache(host, kind, path) for kind, path in cache_folders(host).items())


def read_cache(host: Host, kind: str, path: str) -> Cache:
    """One folder, which need not be there yet."""
    names = names_in(host, path)
    place = nearest_folder(host, path)
    note = read_object(host, f"{path}/{NOTE}") if NOTE in names else None
    return Cache(
        kind=kind,
        path=path,
        writable=attempt(place, lambda: host.may_write(place)),
        disk=attempt(place, lambda: host.disk(place)),
        filled=any(name != NOTE for name in names),
        made_for=note
        if note is None or isinstance(note, Unknown)
        else {key: str(value) for key, value in note.items()},
    )


def note_caches(folders: Mapping[str, str], vllm_version: str, arch: str) -> list[str]:
    """Leave the note in every cache folder that is missing or empty; returns those written.

    Raises OSError for a folder that cannot be written.
    """
    text = json.dumps({"vllm": vllm_version, "arch": arch}) + "\n"
    written: list[str] = []
    for path in folders.values():
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        if not any(folder.iterdir()):
            (folder / NOTE).write_text(text, encoding="utf-8")
            written.append(path)
    return written
