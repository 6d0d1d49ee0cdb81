"""The weights on disk, judged from names, sizes and safetensors headers; no weight is read.

A safetensors file is an 8-byte little-endian length, that many bytes of JSON, and the data that
the JSON's offsets span to the file's last byte (the format's README in its repository).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deploy import plan
from deploy.plan import PlanError
from deploy.preflight.facts.reading import attempt, names_in, nearest_folder
from deploy.preflight.findings import Unknown
from deploy.preflight.host import Disk, Host
from deploy.recipe import Model

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

# NAME or OWNER/NAME; a path beside the server's working folder looks otherwise.
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")

# The format refuses longer headers; the longest index seen (46 shards) is 10 MB.
HEADER_LIMIT = 100_000_000


@dataclass(frozen=True)
class Shard:
    """One file of weights: its size, the size its header asks for, tensors it should hold."""

    name: str
    size: int | None
    expected: int | Unknown
    lacking: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether size and header agree and no tensor of the index is missing."""
        return self.size is not None and self.size == self.expected and not self.lacking


@dataclass(frozen=True)
class Weights:
    """Where the weights should be and what is there; `folder` None when there is no snapshot.

    `revisions` are the snapshots that are there instead, of a hub model.
    """

    model: str
    revision: str | None
    cache: str
    folder: str | None
    revisions: tuple[str, ...]
    shards: tuple[Shard, ...] | Unknown
    disk: Disk | Unknown
    config: Mapping[str, Any] | Unknown

    @property
    def present_bytes(self) -> int:
        """Bytes of the shards that are there."""
        shards = () if isinstance(self.shards, Unknown) else self.shards
        return sum(shard.size or 0 for shard in shards)


def read_weights(host: Host, served: Model, serve: Mapping[str, Any]) -> Weights | Unknown:
    """Find the model that is served: a folder, or a snapshot in the hub's cache."""
    try:
        model = plan.expand(served.id, host.environ)
    except PlanError as e:
        return Unknown(str(e))
    if not model.startswith("/") and not _HUB_NAME.fullmatch(model):
        return Unknown(f"{model} is no hub's name, and where it lies only a start tells")
    revisions: tuple[str, ...] = ()
    if model.startswith("/"):
        cache = model
        folder = model if is_folder(host, model) else None
    else:
        cache = str(serve.get("download-dir") or hub_cache(host.environ))
        snapshots = f"{cache}/models--{model.replace('/', '--')}/snapshots"
        revisions = tuple(names_in(host, snapshots))
        wanted = served.revision or read_main(host, snapshots)
        folder = f"{snapshots}/{wanted}" if wanted in revisions else None
    place = nearest_folder(host, cache)
    return Weights(
        model=model,
        revision=served.revision,
        cache=cache,
        folder=folder,
        revisions=revisions,
        shards=read_shards(host, folder) if folder else (),
        disk=attempt(place, lambda: host.disk(place)),
        config=read_object(host, f"{folder}/config.json") if folder else Unknown("no snapshot"),
    )


def hub_cache(environ: Mapping[str, str]) -> str:
    """The hub's cache folder, by huggingface_hub's own order of variables."""
    if environ.get("HF_HUB_CACHE"):
        return environ["HF_HUB_CACHE"]
    if environ.get("HF_HOME"):
        return f"{environ['HF_HOME']}/hub"
    base = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME', '')}/.cache"
    return f"{base}/huggingface/hub"


def read_main(host: Host, snapshots: str) -> str | None:
    """The revision that the hub's cache calls main."""
    path = f"{snapshots.removesuffix('/snapshots')}/refs/main"
    text = attempt(path, lambda: host.read_text(path))
    return None if isinstance(text, Unknown) else text.strip()


def is_folder(host: Host, path: str) -> bool:
    """Whether a folder is there."""
    seen = attempt(path, lambda: host.stat(path))
    return not isinstance(seen, Unknown) and seen.is_dir


def read_shards(host: Host, folder: str) -> tuple[Shard, ...] | Unknown:
    """Every file that the index names, or the single file of a model without one."""
    names = names_in(host, folder)
    if INDEX not in names:
        if SINGLE in names:
            return (read_shard(host, folder, SINGLE, ()),)
        return Unknown(f"{folder}/{INDEX}: is missing")
    index = read_object(host, f"{folder}/{INDEX}", limit=HEADER_LIMIT)
    if isinstance(index, Unknown):
        return index
    placed = index.get("weight_map")
    if not isinstance(placed, dict) or not placed:
        return Unknown(f"{folder}/{INDEX}: has no weight_map")
    tensors: dict[str, list[str]] = defaultdict(list)
    for tensor, name in placed.items():
        if not isinstance(name, str) or "/" in name or "\0" in name:
            return Unknown(f"{folder}/{INDEX}: places {tensor[:40]!r} in {str(name)[:40]!r}")
        tensors[name].append(tensor)
    return tuple(read_shard(host, folder, name, held) for name, held in sorted(tensors.items()))


def read_shard(host: Host, folder: str, name: str, held: list[str] | tuple[str, ...]) -> Shard:
    """Size and header of one file; `held` are the tensors that the index places in it."""
    path = f"{folder}/{name}"
    size = attempt(path, lambda: host.stat(path).size)
    if isinstance(size, Unknown):
        return Shard(name, None, size)
    header = read_header(host, path)
    if isinstance(header, Unknown):
        return Shard(name, size, header)
    length, tensors = header
    try:
        end = max((int(t["data_offsets"][1]) for t in tensors.values()), default=0)
    except (TypeError, KeyError, IndexError, ValueError, OverflowError):
        return Shard(name, size, Unknown(f"{path}: header without data_offsets"))
    lacking = tuple(tensor for tensor in held if tensor not in tensors)
    return Shard(name, size, 8 + length + end, lacking)


def read_header(host: Host, path: str) -> tuple[int, dict[str, Any]] | Unknown:
    """The header's length in bytes and its tensors."""
    start = attempt(path, lambda: host.read_start(path, 8))
    if isinstance(start, Unknown):
        return start
    length = int.from_bytes(start, "little")
    if len(start) < 8 or not 2 <= length <= HEADER_LIMIT:
        return Unknown(f"{path}: does not begin as a safetensors file")
    raw = attempt(path, lambda: host.read_start(path, 8 + length))
    if isinstance(raw, Unknown):
        return raw
    if len(raw) < 8 + length:
        return Unknown(f"{path}: ends inside its header")
    header = parse_object(raw[8:])
    if header is None:
        return Unknown(f"{path}: its header is not a JSON object")
    header.pop("__metadata__", None)
    return length, header


def read_object(host: Host, path: str, limit: int = 1 << 24) -> dict[str, Any] | Unknown:
    """A JSON file that holds an object."""
    raw = attempt(path, lambda: host.read_start(path, limit))
    if isinstance(raw, Unknown):
        return raw
    found = parse_object(raw)
    return Unknown(f"{path}: is not a JSON object") if found is None else found


def parse_object(raw: bytes) -> dict[str, Any] | None:
    """A JSON object, None for anything else."""
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
