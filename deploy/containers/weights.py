"""`python3 -m deploy weights`: fill the hub's cache with the weights, and read them through.

The download is `hf download`, which goes on where it was cut off. The hub's cache names every file
by its digest, the SHA-256 of a large one and git's of a small one; each is read and compared, and
what differs is removed, so that the next run fetches it again. A server itself stays offline.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deploy.preflight.findings import Unknown
from deploy.preflight.host import Host
from deploy.preflight.weights import read_weights
from deploy.recipe import Profile

SHA256, SHA1 = 64, 40  # letters of a name
BLOCK_BYTES = 1 << 22
READERS = 4  # a digest is slower than a disk


class WeightsError(RuntimeError):
    """The weights are not there as they should be; the message is one line: what, and the fix."""


def fetch(profile: Profile, environ: Mapping[str, str]) -> Path:
    """Download, and judge every file of the snapshot; returns its folder. Raises WeightsError."""
    if profile.is_rehearsal:
        raise WeightsError(
            f"profile: got {profile.name}, whose models are generated; there is no download"
        )
    command = ["hf", "download", profile.model.id]
    if profile.revision:
        command += ["--revision", profile.revision]
    print(f"weights: {' '.join(command)}", flush=True)
    try:
        ended = subprocess.run(command, env={**environ, "HF_HUB_OFFLINE": "0"}, check=False)
    except FileNotFoundError as e:
        fix = "run it in the server's image, or install huggingface_hub"
        raise WeightsError(f"hf: is not installed; {fix}") from e
    if ended.returncode:
        fix = "see its lines above, and run this again: it goes on from there"
        raise WeightsError(f"hf download: ended with {ended.returncode}; {fix}")
    return verify(profile, environ)


def verify(profile: Profile, environ: Mapping[str, str]) -> Path:
    """Judge every file of the snapshot; returns its folder. Raises WeightsError."""
    found = read_weights(Host(environ), profile.model, {})
    if isinstance(found, Unknown):
        raise WeightsError(found.reason)
    if found.folder is None:
        raise WeightsError(f"{found.model} at {found.revision} is not in {found.cache}")
    files = sorted(path for path in Path(found.folder).rglob("*") if not path.is_dir())
    print(f"weights: reading {len(files)} files, {found.present_bytes / 1e9:.1f} GB", flush=True)
    with ThreadPoolExecutor(READERS) as readers:
        bad = [
            path for path, good in zip(files, readers.map(is_whole, files), strict=True) if not good
        ]
    for path in bad:
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    if bad:
        names = ", ".join(path.name for path in bad)
        raise WeightsError(f"{names}: not what the hub has, and removed; run this again")
    if isinstance(found.shards, Unknown):
        raise WeightsError(found.shards.reason)
    partial = [shard.name for shard in found.shards if not shard.is_whole]
    if partial:
        raise WeightsError(
            f"{', '.join(partial)}: missing, or not what the index says; run this again"
        )
    print(f"weights: {len(found.shards)} shards, every byte as the hub has it: {found.folder}")
    return Path(found.folder)


def is_whole(path: Path) -> bool:
    """Whether a file has the digest that its blob is named by. Raises WeightsError."""
    try:
        blob = path.resolve(strict=True)
        digests: Mapping[int, Callable[[], hashlib._Hash]] = {
            SHA256: hashlib.sha256,
            SHA1: lambda: hashlib.sha1(b"blob %d\0" % blob.stat().st_size, usedforsecurity=False),
        }
        make = digests.get(len(blob.name))
        if make is None or not path.is_symlink():
            raise WeightsError(
                f"{path}: is no link to a blob named by its digest; use a hub's cache"
            )
        digest = make()
        with blob.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
    except FileNotFoundError:
        return False
    except OSError as e:
        raise WeightsError(f"{path}: cannot be read: {e.strerror}") from e
    return digest.hexdigest() == blob.name


def main(profile: Profile) -> int:
    """Fetch; 0 when every byte is as it should be, 1 when not, which the last line says."""
    try:
        fetch(profile, os.environ)
    except WeightsError as e:
        print(f"weights: {e}", file=sys.stderr)
        return 1
    return 0
