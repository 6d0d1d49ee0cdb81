"""Replacing several files of a tree so that all change or none does, even across a SIGKILL.

New contents and copies of the old ones are written to a folder inside the package (hence on its
file system), then a journal that names them, then each new file is renamed into place, and removing
the journal commits. A journal that is still there says that a run was cut short; rolling back
restores every old file. Files are renamed over, never written in place, so a tree whose files are
links to another tree's leaves that other tree alone.
"""

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from patches.errors import InterruptedApplyError, PatchesError

STAGING = ".dspark-patches"
_JOURNAL = "journal.json"
_LOCK_WAIT_S = 60.0  # an apply takes well under a second; a minute means that one hangs
_LOCK_POLL_S = 0.05

Step = Callable[[str], None]


def no_step(name: str) -> None:
    """The `Step` of a run that nothing watches."""


@dataclass(frozen=True)
class Change:
    """The content a file shall have, and the content it was judged by. `path` is in the package."""

    path: Path
    old: bytes
    new: bytes


def digest(content: bytes) -> str:
    """sha256 of `content`, in hex."""
    return hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def locked(package: Path, *, exclusive: bool) -> Iterator[None]:
    """Hold the tree's lock: one writer or any number of readers.

    The package folder itself is locked (flock), so no lock file is left behind and a read-only
    tree can still be read under lock. Raises `PatchesError` if another process keeps it for a
    minute or the file system has no locks.
    """
    descriptor = os.open(package, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _wait_for_lock(package, descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _wait_for_lock(package: Path, descriptor: int, operation: int) -> None:
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise PatchesError(
                    f"{package}: another process has been patching it for {_LOCK_WAIT_S:.0f} s:"
                    " wait for it or stop it"
                ) from None
            time.sleep(_LOCK_POLL_S)
        except OSError as error:
            raise PatchesError(
                f"{package}: cannot be locked: {error.strerror}: use a local file system"
            ) from error


def refuse_interrupted(package: Path) -> None:
    """Raise `InterruptedApplyError` if an earlier run left its journal. Call under the lock."""
    if (package / STAGING / _JOURNAL).exists():
        raise InterruptedApplyError(
            f"{package}: an earlier apply was interrupted half-way and has not been rolled back:"
            f" run: python3 -m patches apply {package.parent}"
        )


def recover(package: Path) -> int:
    """Roll back an interrupted run, if there is one, and return how many files were restored.

    Call under the exclusive lock. Raises `PatchesError` if a file is neither the run's old nor its
    new content: somebody changed it since, and restoring it would lose that.
    """
    staging = package / STAGING
    if not (staging / _JOURNAL).exists():
        _discard(staging)  # killed before its journal, or after its commit: nothing to restore
        return 0
    restorable = []
    for entry in _read_journal(package):
        seen = digest(entry.path.read_bytes()) if entry.path.is_file() else "no such file"
        if seen not in (entry.old, entry.new):
            raise PatchesError(
                f"{entry.path}: changed since an apply was interrupted: sha256 {seen}, expected"
                f" {entry.old} or {entry.new}: restore it from {entry.backup} and delete {staging}"
            )
        if seen == entry.new:
            restorable.append((entry.path, entry.backup))
    for path, backup in restorable:
        restored = backup.with_suffix(".restored")
        restored.unlink(missing_ok=True)  # of a rollback that was itself cut short
        _write(restored, backup.read_bytes(), like=path)
        restored.replace(path)
        _sync(path.parent)
        _drop_bytecode(path)
    _commit(staging)
    return len(restorable)


@dataclass(frozen=True)
class _Entry:
    """One file of a journal: where it is, where its old content is, both contents' hashes."""

    path: Path
    backup: Path
    old: str
    new: str


def _read_journal(package: Path) -> list[_Entry]:
    path = package / STAGING / _JOURNAL
    try:
        return [
            _Entry(
                package / entry["path"], path.parent / entry["backup"], entry["old"], entry["new"]
            )
            for entry in json.loads(path.read_bytes())
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise PatchesError(
            f"{path}: is not a journal of this program: reinstall vLLM and delete {path.parent}"
        ) from error


def replace_all(package: Path, changes: list[Change], step: Step = no_step) -> None:
    """Make every change or none. Call under the exclusive lock, after `recover`.

    `step` is called with the name of each point a kill could fall on; the tests kill there.
    Raises `PatchesError`, with the tree as it was, if any file cannot be written.
    """
    staging = package / STAGING
    try:
        _stage(staging, package, changes, step)
        for number, change in enumerate(changes):
            (staging / f"{number}.new").replace(change.path)
            _sync(change.path.parent)
            step(f"renamed {number}")
        for change in changes:
            _drop_bytecode(change.path)
        step("bytecode dropped")
        _commit(staging)
    except OSError as error:
        recover(package)
        where = error.filename2 or error.filename or package
        raise PatchesError(f"{where}: {error.strerror}: nothing was changed") from error
    except BaseException:
        recover(package)
        raise
    step("committed")


def _stage(staging: Path, package: Path, changes: list[Change], step: Step) -> None:
    staging.mkdir()
    journal = []
    for number, change in enumerate(changes):
        new, backup = staging / f"{number}.new", staging / f"{number}.old"
        _write(backup, change.old, like=change.path)
        _write(new, change.new, like=change.path)
        journal.append(
            {
                "path": str(change.path.relative_to(package)),
                "backup": backup.name,
                "old": digest(change.old),
                "new": digest(change.new),
            }
        )
    step("staged")
    draft = staging / f"{_JOURNAL}.draft"
    _write(draft, json.dumps(journal).encode())
    draft.replace(staging / _JOURNAL)
    _sync(staging)
    _sync(package)
    step("journal written")


def _write(path: Path, content: bytes, *, like: Path | None = None) -> None:
    """Create `path` durably; with `like`, give it that file's mode and, if permitted, its owner."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        if like is not None:
            model = like.stat()
            os.fchmod(file.fileno(), stat.S_IMODE(model.st_mode))
            with contextlib.suppress(PermissionError):
                os.fchown(file.fileno(), model.st_uid, model.st_gid)
            # Python takes a .pyc for current if it records the source's size and whole second.
            second = max(int(time.time()), int(model.st_mtime) + 1)
            os.utime(file.fileno(), (second, second))
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _drop_bytecode(source: Path) -> None:
    """Delete compiled copies of `source`: one of the unchecked-hash kind would never be renewed."""
    for compiled in (source.parent / "__pycache__").glob(f"{glob.escape(source.stem)}.*.pyc"):
        compiled.unlink(missing_ok=True)


def _commit(staging: Path) -> None:
    (staging / _JOURNAL).unlink()
    _sync(staging)
    shutil.rmtree(staging, ignore_errors=True)  # what may stay is inert without its journal


def _discard(staging: Path) -> None:
    if staging.exists():
        shutil.rmtree(staging)
