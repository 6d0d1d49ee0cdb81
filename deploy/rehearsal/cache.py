"""The cache folder of a rehearsal, and how a folder is published in it all at once."""

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from deploy.rehearsal.errors import RehearsalError

_UNFINISHED = ".unfinished-"


def publish(folder: Path, build: Callable[[Path], None]) -> Path:
    """Make ``folder`` exist with what ``build`` writes, or not at all, and return it.

    ``build`` gets an empty folder on the same file system; when it returns, that folder is renamed
    to ``folder``. A folder that is already there is complete and is reused. Builders of the same
    parent take turns; what a killed builder left behind is removed by the next one.

    Raises RehearsalError if the folder cannot be written, for example because the disk is full.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _turn(folder.parent):
            _remove_unfinished(folder.parent)
            if not folder.is_dir():
                _build_beside(folder, build)
    except OSError as error:
        raise RehearsalError(
            f"cache folder {folder.parent}: {error.strerror or error}: "
            "free some disk space or set DSPARK_CACHE to a folder that can be written"
        ) from error
    return folder


@contextlib.contextmanager
def _turn(parent: Path) -> Iterator[None]:
    with (parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_unfinished(parent: Path) -> None:
    for left_behind in parent.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(left_behind, ignore_errors=True)


def _build_beside(folder: Path, build: Callable[[Path], None]) -> None:
    unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder.parent))
    try:
        unfinished.chmod(0o755)
        build(unfinished)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
