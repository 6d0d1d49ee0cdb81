"""Replacing several files of a tree so that all change or none does, even across a SIGKILL.

New contents and copies of the old ones are written to a folder inside the package (hence on its
file system), then a journal that names them, then each new file is renamed into place, and removing
the journal commits. A journal that is still there says that a run was cut short; rolling back
renames every old file into place again, which takes no room on the disk. Files are renamed over,
never written in place, and no folder that is a link is entered, so a tree that is linked to another
one leaves that other tree alone. A journal is believed only where its writer could have done as
much without it: of this user, of root or of the package's owner, about files in the package.
"""

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from patches.errors import InterruptedApplyError, PatchesError
from patches.tree import read_source

STAGING = ".dspark-patches"
_JOURNAL = "journal.json"
_BACKUP = re.compile(r"[0-9]+\.old")
_SHA256 = re.compile(r"[0-9a-f]{64}")
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
    try:
        descriptor = os.open(package, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise PatchesError(f"{_where(error, package)}: the tree cannot be read") from error
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
    try:
        interrupted = _is_there(package / STAGING / _JOURNAL)
    except OSError as error:
        raise PatchesError(f"{_where(error, package)}: the tree cannot be judged") from error
    if interrupted:
        raise InterruptedApplyError(
            f"{package}: an earlier apply was interrupted half-way and has not been rolled back:"
            f" run: python3 -m patches apply {package.parent}"
        )


def recover(package: Path) -> int:
    """Roll back an interrupted run, if there is one, and return how many files were restored.

    Call under the exclusive lock. Raises `PatchesError`, with the journal kept, if that cannot be
    done, if the journal is not one of this program, or if a file is neither the run's old nor its
    new content: somebody changed it since, and restoring it would lose that.
    """
    staging = package / STAGING
    try:
        if not _is_there(staging):
            return 0
        _refuse_strangers(package, staging, stat.S_ISDIR)
        if not _is_there(staging / _JOURNAL):
            shutil.rmtree(staging)  # killed before its journal, or after its commit
            return 0
        restorable = [entry for entry in _read_journal(package) if _is_replaced(entry, staging)]
        for entry in restorable:
            # Later than the file it replaces, for the sake of compiled copies: see _write.
            second = int(entry.path.stat().st_mtime) + 1
            os.utime(entry.backup, (second, second))
            entry.backup.replace(entry.path)
            _sync(entry.path.parent)
            _drop_bytecode(entry.path)
        _commit(staging)
    except OSError as error:
        raise PatchesError(
            f"{_where(error, staging)}: cannot roll back an interrupted apply: mend that, then run:"
            f" python3 -m patches apply {package.parent}"
        ) from error
    return len(restorable)


@dataclass(frozen=True)
class _Entry:
    """One file of a journal: where it is, where its old content is, both contents' hashes."""

    path: Path
    backup: Path
    old: str
    new: str


def _is_replaced(entry: _Entry, staging: Path) -> bool:
    """Whether a file has its new content, and its old one is there. Raises `PatchesError`."""
    seen = digest(entry.path.read_bytes()) if entry.path.is_file() else "no such file"
    if seen == entry.old:
        return False
    if seen != entry.new:
        raise PatchesError(
            f"{entry.path}: changed since an apply was interrupted: sha256 {seen}, expected"
            f" {entry.old} or {entry.new}: restore it from {entry.backup} and delete {staging}"
        )
    if digest(_read_own(entry.backup)) != entry.old:
        raise PatchesError(
            f"{entry.backup}: is not the content that its journal states: reinstall vLLM and delete"
            f" {staging}"
        )
    return True


def _read_journal(package: Path) -> list[_Entry]:
    path = package / STAGING / _JOURNAL
    _refuse_strangers(package, path, stat.S_ISREG)
    try:
        listed = json.loads(_read_own(path))
        if not isinstance(listed, list):
            raise TypeError(listed)
        entries = [_entry(package, fields) for fields in listed]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PatchesError(
            f"{path}: is not a journal of this program: reinstall vLLM and delete {path.parent}"
        ) from error
    for entry in entries:
        refuse_links(package, entry.path)
    return entries


def _entry(package: Path, fields: Mapping[str, str]) -> _Entry:
    """An entry as a journal has it. Raises ValueError, KeyError or TypeError for anything else."""
    path, backup = PurePath(fields["path"]), fields["backup"]
    old, new = fields["old"], fields["new"]
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(path)
    if not _BACKUP.fullmatch(backup) or not _SHA256.fullmatch(old) or not _SHA256.fullmatch(new):
        raise ValueError(fields)
    return _Entry(package / path, package / STAGING / backup, old, new)


def _refuse_strangers(package: Path, path: Path, is_kind: Callable[[int], bool]) -> None:
    """Raise `PatchesError` unless `path` is what this program makes, and nobody else may write."""
    found = path.lstat()
    if not is_kind(found.st_mode):
        seen = "is no file or folder of this program"
    elif found.st_uid not in (0, os.geteuid(), package.stat().st_uid):
        seen = f"belongs to user {found.st_uid}, who owns neither the tree nor this run"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        seen = f"can be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    else:
        return
    raise PatchesError(
        f"{path}: {seen}: nothing was changed: reinstall vLLM and delete {package / STAGING}"
    )


def _read_own(path: Path) -> bytes:
    """A file of the staging folder. Raises OSError, also for a link, which is none of ours."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "is a link", str(path))
    return read_source(path)


def _is_there(path: Path) -> bool:
    """Whether there is anything of that name. Raises OSError where that cannot be told."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def refuse_links(package: Path, path: Path) -> None:
    """Raise `PatchesError` if a folder on the way from `package`, itself too, to `path` is a link.

    What is changed behind it would be another tree.
    """
    folders = [package, *reversed(path.relative_to(package).parents[:-1])]
    for folder in (package / folder for folder in folders):
        if folder.is_symlink():
            raise PatchesError(
                f"{folder}: is a link to {os.path.realpath(folder)}: nothing was changed: name the"
                " tree that holds it, or put a copy in its place"
            )


def replace_all(package: Path, changes: list[Change], step: Step = no_step) -> None:
    """Make every change or none. Call under the exclusive lock, after `recover`.

    `step` is called with the name of each point a kill could fall on; the tests kill there.
    Raises `PatchesError`, with the tree as it was, if any file cannot be written; if that cannot be
    had back either, the message says so and the journal stays for the next `recover`.
    """
    for change in changes:
        refuse_links(package, change.path)
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
        _take_back(package, f"{_where(error, package)}; ")
        raise PatchesError(f"{_where(error, package)}: nothing was changed") from error
    except BaseException:
        _take_back(package)
        raise
    step("committed")


def _take_back(package: Path, reason: str = "") -> None:
    """Roll back a run that cannot go on, which without a journal has changed nothing."""
    with contextlib.suppress(OSError):  # `recover` says it
        if not _is_there(package / STAGING / _JOURNAL):
            shutil.rmtree(package / STAGING, ignore_errors=True)
            return
    try:
        recover(package)
    except PatchesError as error:
        raise PatchesError(f"{reason}{error}") from error


def _where(error: OSError, otherwise: Path) -> str:
    """The file and what the system said of it."""
    return f"{error.filename2 or error.filename or otherwise}: {error.strerror or error}"


def _stage(staging: Path, package: Path, changes: list[Change], step: Step) -> None:
    staging.mkdir(mode=0o755)
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
    with open(path, "xb", opener=_open_for_owner) as file:
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


def _open_for_owner(path: str, flags: int) -> int:
    """Opened so that no umask lets others write what a rollback will believe."""
    return os.open(path, flags, 0o644)


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
    try:
        _sync(staging)
    except OSError as error:
        raise PatchesError(
            f"{_where(error, staging)}: the tree is whole, but the disk may not keep it: look at"
            " the disk, then run --check"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)  # what may stay is inert without its journal
