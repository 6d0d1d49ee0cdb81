"""Reading one thing of a machine: what cannot be read or makes no sense becomes Unknown."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from deploy.preflight.findings import Unknown
from deploy.preflight.host import Host

_NUMBER = re.compile(r"[0-9]{1,20}")
_VERSION = re.compile(r"[0-9]+(\.[0-9A-Za-z]+)*([-+~][0-9A-Za-z.~+-]+)?")
T = TypeVar("T")


def attempt(what: str, read: Callable[[], T]) -> T | Unknown:
    """What `read` returns; an OSError becomes Unknown."""
    try:
        return read()
    except OSError as e:
        return Unknown(f"{what}: {e.strerror or type(e).__name__}")
    except (ValueError, OverflowError) as e:  # a path with a NUL byte, a port past 65535
        return Unknown(f"{what}: {e}")


def number(text: str) -> int | None:
    """An unsigned 64-bit decimal number, as the kernel prints one; else None."""
    text = text.strip()
    if not _NUMBER.fullmatch(text) or int(text) >= 1 << 64:
        return None
    return int(text)


def read_number(host: Host, path: str) -> int | Unknown:
    """A file that holds one number."""
    text = attempt(path, lambda: host.read_text(path))
    if isinstance(text, Unknown):
        return text
    value = number(text)
    return Unknown(f"{path}: holds {shown(text)}") if value is None else value


def read_version(host: Host, path: str) -> str | Unknown:
    """A file that holds one version."""
    return read_word(host, path, _VERSION)


def read_word(host: Host, path: str, form: re.Pattern[str]) -> str | Unknown:
    """A file that holds one word of this form."""
    text = attempt(path, lambda: host.read_text(path))
    if isinstance(text, Unknown):
        return text
    text = text.strip()
    return text if form.fullmatch(text) else Unknown(f"{path}: holds {shown(text)}")


def names_in(host: Host, folder: str) -> list[str]:
    """The names in a folder, none when it cannot be listed."""
    names = attempt(folder, lambda: host.list_dir(folder))
    return [] if isinstance(names, Unknown) else names


def nearest_folder(host: Host, path: str) -> str:
    """The path, or the closest folder above it that is there."""
    while path not in ("/", ""):
        try:
            host.stat(path)
            return path
        except OSError:
            path = path.rpartition("/")[0]
    return "/"


def shown(text: str) -> str:
    """Something read, short enough for one line."""
    text = text.strip()
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
