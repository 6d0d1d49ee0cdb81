"""The patch series: which patches there are, in which order, and that they fit each other.

What each changes, from which hash to which and until when stands in its own header (`headers`), so
no other file repeats it.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from patches import unified
from patches.errors import SeriesError
from patches.headers import HeaderError, parse_patch
from patches.patch import Patch

FOLDER = Path(__file__).resolve().parent
SERIES_FILE = "series"


@dataclass(frozen=True)
class Series:
    """The patches of one folder, in the order they apply."""

    folder: Path
    patches: tuple[Patch, ...]

    @property
    def sha256(self) -> str:
        """One hash over the names and contents of all patches, for provenance."""
        lines = "".join(f"{patch.sha256}  {patch.name}\n" for patch in self.patches)
        return hashlib.sha256(lines.encode()).hexdigest()


def load(folder: Path | None = None) -> Series:
    """Read and validate the series of `folder` (default: the one this package ships).

    Raises `SeriesError`, one line, if a listed patch is absent or malformed, a patch file is not
    listed, a patch changes a file it does not declare, or the hashes of two patches contradict.
    """
    folder = folder or FOLDER
    names = _read_names(folder)
    strays = sorted({path.name for path in folder.glob("*.patch")} - set(names))
    if strays:
        raise SeriesError(
            f"{folder / strays[0]}: not listed in {SERIES_FILE}: add its name or delete it"
        )
    patches = tuple(_read_patch(folder / name) for name in names)
    _check_chains(folder, patches)
    return Series(folder, patches)


def _read_names(folder: Path) -> tuple[str, ...]:
    path = folder / SERIES_FILE
    names: list[str] = []
    for number, line in enumerate(_read(path).decode("utf-8", "replace").splitlines(), 1):
        name = line.partition("#")[0].strip()
        if not name:
            continue
        if name in names:
            raise SeriesError(f"{path}: line {number}: {name} is listed twice")
        if "/" in name or not name.endswith(".patch"):
            raise SeriesError(f"{path}: line {number}: {name!r} is not the name of a .patch file")
        if not (folder / name).is_file():
            raise SeriesError(f"{path}: line {number}: {name} does not exist in {folder}")
        names.append(name)
    if not names:
        raise SeriesError(f"{path}: lists no patch")
    return tuple(names)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SeriesError(f"{path}: cannot be read: {error.strerror}") from error


def _read_patch(path: Path) -> Patch:
    content = _read(path)
    try:
        return parse_patch(path.name, content)
    except (HeaderError, unified.DiffError) as error:
        raise SeriesError(f"{path}: {error}") from error


def _check_chains(folder: Path, patches: tuple[Patch, ...]) -> None:
    """Refuse hashes that lead back: a file's state must say which patches it carries."""
    seen: dict[str, set[str]] = {}
    for patch in patches:
        for target in patch.targets:
            earlier = seen.setdefault(target.path, set())
            before = {pair.before for pair in target.pairs}
            for pair in target.pairs:
                if pair.after in earlier | before:
                    raise SeriesError(
                        f"{folder / patch.name}: X-Sha256: {pair.after} is the hash after this"
                        f" patch and also a hash before it of {target.path}"
                    )
            earlier |= before | {pair.after for pair in target.pairs}
