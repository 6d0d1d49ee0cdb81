"""Files that users name: read within a limit, written as a whole or not at all."""

from __future__ import annotations

import codecs
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

SECRET_LIMIT_BYTES = 4096


class SecretError(ValueError):
    """A file holds no secret. The message says what to put there, and nothing of what is there."""

    def __init__(self) -> None:
        super().__init__("holds no secret; write one line of ASCII into it")


def read_text(path: Path, limit_bytes: int) -> str:
    """A file of UTF-8 text, with or without the mark that some editors put first.

    Raises OSError, also for a file that is longer, and UnicodeDecodeError.
    """
    with path.open("rb") as file:
        raw = file.read(limit_bytes + 1)
    if len(raw) > limit_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return raw.decode("utf-8-sig")


def open_regular(path: Path) -> BinaryIO:
    """A file to read, without waiting for anything: a pipe or a device is none. Raises OSError."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return os.fdopen(number, "rb")


def read_secret(path: Path, opened: Callable[[Path], BinaryIO] = lambda p: p.open("rb")) -> str:
    """The one word of printable ASCII in a file, empty if the file is. Raises OSError, SecretError.

    Anything else could not be sent in a header of HTTP, nor be a variable of the environment.
    """
    with opened(path) as file:
        raw = file.read(SECRET_LIMIT_BYTES + 1)
    word = raw.removeprefix(codecs.BOM_UTF8).strip()
    if len(raw) > SECRET_LIMIT_BYTES or not all(0x21 <= byte <= 0x7E for byte in word):
        raise SecretError
    return word.decode("ascii")


def why_not_writable(path: Path) -> str:
    """Why `write_whole` could not put a file there, empty if nothing speaks against it."""
    try:
        if path.is_dir():
            return "is a folder"
        if _is_device(path):
            return "" if os.access(path, os.W_OK) else "cannot be written to"
        folder = path.absolute().parent
        while not folder.exists():
            folder = folder.parent
        if not folder.is_dir():
            return f"{folder} is not a folder"
    except OSError as e:  # such as a name that is too long
        return e.strerror or type(e).__name__
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} cannot be written to"


def write_whole(path: Path, content: str | bytes, mode: int | None = None) -> None:
    """Put a file in place in one step; missing folders are made, links followed. Raises OSError.

    What is there and is no file, such as /dev/stdout, is written to and stays what it is. `mode` is
    the file's, None for what the umask leaves.
    """
    data = content.encode() if isinstance(content, str) else content
    if _is_device(path):
        path.write_bytes(data)
        return
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(data)
        if mode is not None:
            partial.chmod(mode)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _is_device(path: Path) -> bool:
    """Whether it is there and is neither a file nor a folder: a terminal, a pipe, /dev/null."""
    return path.exists() and not path.is_file() and not path.is_dir()
