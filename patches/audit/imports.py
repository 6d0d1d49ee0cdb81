"""Which files of a model's package a file imports, directly or through others, found as text.

Parsing a whole package to follow its imports takes too long. What an import statement names is
enough: that it stands under a condition or in a function does not matter here.
"""

import re
from collections.abc import Iterator

from patches.audit.modules import ModuleIndex

_IMPORT = re.compile(
    r"^[ \t]*from[ \t]+(?P<base>[.\w]+)[ \t]+import[ \t]+(?:\((?P<many>[^)]*)\)|(?P<few>[^\n(]*))"
    r"|^[ \t]*import[ \t]+(?P<whole>[.\w]+)",
    re.MULTILINE,
)


class PackageImports:
    """The imports between the files of the packages of one tree."""

    def __init__(self, index: ModuleIndex) -> None:
        self._tree = index.tree
        self._direct: dict[tuple[str, str], list[str]] = {}

    def reached(self, path: str, package: str) -> list[str]:
        """Return `path` and the files below `package` (dotted) that it imports."""
        inside = package.replace(".", "/") + "/"
        seen: dict[str, None] = {}
        waiting = [path]
        while waiting:
            file = waiting.pop()
            if file in seen:
                continue
            seen[file] = None
            waiting += self._imported(file, inside)
        return list(seen)

    def _imported(self, path: str, inside: str) -> list[str]:
        key = (path, inside)
        if key not in self._direct:
            names = dict.fromkeys(_named(path, self._tree.read(path) or ""))
            files = (
                file
                for name in names
                if name.startswith(inside)
                for file in (f"{name}.py", f"{name}/__init__.py")
            )
            self._direct[key] = [file for file in files if self._tree.has(file)]
        return self._direct[key]


def _named(path: str, text: str) -> Iterator[str]:
    """Yield what may be a module among the names that a file imports, as paths without ending."""
    for match in _IMPORT.finditer(text):
        if match["whole"]:
            yield match["whole"].replace(".", "/")
            continue
        base = _absolute(path, match["base"])
        yield base
        for name in re.findall(r"(\w+)(?:[ \t]+as[ \t]+\w+)?", match["many"] or match["few"] or ""):
            yield f"{base}/{name}"


def _absolute(path: str, base: str) -> str:
    dots = len(base) - len(base.lstrip("."))
    below = base[dots:].replace(".", "/")
    if not dots:
        return below
    folders = path.split("/")[:-dots]
    return "/".join([*folders, below] if below else folders)
