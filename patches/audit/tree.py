"""Reading a vLLM source tree wherever it lies: a checkout, an installed package, a wheel file."""

import re
import zipfile
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Protocol

from patches.errors import PatchesError
from patches.tree import read_source

REGISTRY = "vllm/model_executor/models/registry.py"
"""The file that tells a vLLM tree from anything else; every release since 0.25 has it."""


# What zipfile raises for an entry that is encrypted or packed in an unknown way, or cut short.
_UNREADABLE = (RuntimeError, EOFError, OSError)


class MisuseError(PatchesError):
    """The command cannot be carried out as given: no vLLM there, an unknown name, a bad file."""


class Storage(Protocol):
    """The files of one package, by their path below the folder that holds it (``vllm/...``)."""

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None when there is no such file."""

    def has(self, path: str) -> bool:
        """Return whether there is such a file."""

    def names(self, folder: str) -> list[str]:
        """Return the paths of all Python files below `folder`, sorted."""


class FolderStorage:
    """Files of an unpacked package; `package` is the folder that stands for ``vllm``."""

    def __init__(self, package: Path) -> None:
        self._package = package

    def read(self, path: str) -> str | None:
        file = self._package / path.removeprefix("vllm/")
        try:
            return read_source(file).decode("utf-8")
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        except OSError as error:
            raise MisuseError(f"{file}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise MisuseError(f"{file}: not UTF-8 text: {error.reason}") from error

    def has(self, path: str) -> bool:
        return (self._package / path.removeprefix("vllm/")).is_file()

    def names(self, folder: str) -> list[str]:
        base = self._package / folder.removeprefix("vllm/")
        found = (file.relative_to(self._package).as_posix() for file in base.rglob("*.py"))
        return sorted(f"vllm/{name}" for name in found)


class WheelStorage:
    """Files of a wheel, read from the archive without unpacking it."""

    def __init__(self, wheel: Path) -> None:
        try:
            self._archive = zipfile.ZipFile(wheel)
        except (zipfile.BadZipFile, OSError) as error:
            raise MisuseError(f"{wheel}: not a readable wheel: {error}") from error
        self._names = frozenset(self._archive.namelist())

    def read(self, path: str) -> str | None:
        if path not in self._names:
            return None
        try:
            return self._archive.read(path).decode("utf-8")
        except (zipfile.BadZipFile, zlib.error, UnicodeDecodeError, *_UNREADABLE) as error:
            raise MisuseError(f"{self._archive.filename}: {path}: damaged: {error}") from error

    def has(self, path: str) -> bool:
        return path in self._names

    def names(self, folder: str) -> list[str]:
        prefix = folder.rstrip("/") + "/"
        return sorted(n for n in self._names if n.startswith(prefix) and n.endswith(".py"))


class SourceTree:
    """A vLLM tree; paths in it always start with ``vllm/``."""

    def __init__(self, label: str, storage: Storage) -> None:
        self.label = label
        self._storage = storage

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None when the tree has no such file."""
        return self._storage.read(path)

    def has(self, path: str) -> bool:
        """Return whether the tree has such a file."""
        return self._storage.has(path)

    def python_files(self, folder: str) -> list[str]:
        """Return the paths of all Python files below `folder`, sorted."""
        return self._storage.names(folder)

    @cached_property
    def version(self) -> str | None:
        """The release, from the file the build writes; None in a checkout that was never built."""
        text = self._storage.read("vllm/_version.py") or ""
        match = re.search(r"^__version__\s*=.*?['\"]([^'\"]+)['\"]", text, re.MULTILINE)
        return match[1] if match else None


def open_tree(path: Path) -> SourceTree:
    """Open a wheel file, a folder that holds ``vllm/``, or the ``vllm`` folder itself.

    Raises `MisuseError` when `path` does not exist or holds no vLLM.
    """
    try:
        if not path.exists():
            raise MisuseError(f"{path}: does not exist; name a wheel, site-packages or a checkout")
        for storage in _storages(path):
            if storage.has(REGISTRY):
                return SourceTree(str(path), storage)
    except OSError as error:  # no right to look into it, or a name that is too long
        fix = "name a wheel, site-packages or a checkout"
        raise MisuseError(f"{path}: {error.strerror}; {fix}") from error
    raise MisuseError(
        f"{path}: not a vLLM tree: it has no {REGISTRY}; name a wheel, site-packages or a checkout"
    )


def _storages(path: Path) -> Iterator[Storage]:
    if path.is_file():
        yield WheelStorage(path)
    else:
        yield FolderStorage(path / "vllm")
        yield FolderStorage(path)
