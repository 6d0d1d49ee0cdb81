"""The sources of a vLLM wheel, through the user's pip: ``*.py`` and the metadata, about 35 MB."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from patches.errors import PatchesError
from patches.tree import find

#: The sources are the same on every machine. pip takes a wheel for any of these, by name of the C
#: library that it is for.
PLATFORMS = tuple(f"manylinux_2_{minor}_x86_64" for minor in (28, 31, 34, 35))


class WheelError(PatchesError):
    """A wheel cannot be had; the message is one line with pip's own last words."""


def fetch(version: str | None, cache: Path) -> Path:
    """The folder below `cache` that holds ``vllm/`` of a release, None for the newest one.

    What was fetched is taken again, but the newest is asked for each time. Raises WheelError, and
    OSError for a folder that cannot be written.
    """
    if version and (cache / version).is_dir():
        return cache / version
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".fetching-") as scratch:
        wheel = download(f"vllm=={version}" if version else "vllm", Path(scratch))
        unpacked = unpack(wheel, Path(scratch) / "tree")
        seen = find(unpacked).version
        if seen is None:
            raise WheelError(f"{wheel.name}: does not say its version: give another VERSION")
        folder = cache / seen
        if not folder.is_dir():
            unpacked.rename(folder)
    return folder


def download(requirement: str, folder: Path, platforms: Sequence[str] = PLATFORMS) -> Path:
    """The wheel that pip finds for `requirement`, in `folder`. Raises WheelError."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    # A release that wants a newer Python is the newest all the same.
    command += ["--only-binary=:all:", "--ignore-requires-python", "--python-version=3.11"]
    command += [f"--platform={platform}" for platform in platforms]
    command += ["--disable-pip-version-check", f"--dest={folder}", requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise WheelError(
            f"{requirement}: cannot be downloaded: {last.removeprefix('ERROR: ')}; check pip's "
            "index and network (pip config list)"
        )
    return wheels[0]


def unpack(wheel: Path, folder: Path) -> Path:
    """Put the Python files of a wheel and its metadata into `folder`, and return it."""
    with zipfile.ZipFile(wheel) as archive:
        kept = [n for n in archive.namelist() if n.endswith((".py", ".dist-info/METADATA"))]
        archive.extractall(folder, kept)
    return folder
