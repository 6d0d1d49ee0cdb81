"""Imports go one way: the table of deploy/ARCHITECTURE.md, held against every file of the product."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support.documents import ROOT

T = TypeVar("T")
Graph = dict[Path, set[T]]
Imports = tuple[Graph[Path], Graph[str]]

OURS = ("deploy", "docker", "healthcheck", "patches")
# Files that Python finds beside the one that is run.
BESIDE = {"entrypoint": "docker.entrypoint", "graph_restarts": "docker.graph_restarts"}
ROW = re.compile(r"^\| (`[^|]+) \| [^|]+ \| ([^|]*)\|$", re.MULTILINE)
# A module by its name alone, as `python3 -m` takes it.
STARTED = re.compile(rf"(?:{'|'.join(OURS)})(?:\.\w+)+")
NAME = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Room:
    """A row of the table: its folders and files, and the projects of others that it may import."""

    places: tuple[str, ...]
    others: frozenset[str]

    def fit(self, file: Path) -> int:
        """How closely a file belongs here: the length of the place that names it, 0 for none."""
        at = file.as_posix()
        inside = (p for p in self.places if at.startswith(f"{p}/") or _names(p, at))
        return max((len(place) - place.count("*") for place in inside), default=0)


def _names(place: str, at: str) -> bool:
    return fnmatch(at, place) and at.count("/") == place.count("/")


def rooms(page: str) -> list[Room]:
    """The rows of the page's table, from low to high."""
    return [
        Room(tuple(NAME.findall(places)), frozenset(NAME.findall(others)))
        for places, others in ROW.findall(page)
    ]


@functools.cache
def trees() -> dict[Path, ast.Module]:
    """The product's Python files, relative to the checkout."""
    paths = (path for folder in OURS for path in sorted((ROOT / folder).rglob("*.py")))
    return {path.relative_to(ROOT): ast.parse(path.read_text("utf-8")) for path in paths}


def module_of(file: Path) -> str:
    """The name by which a file is imported."""
    return ".".join(file.with_suffix("").parts).removesuffix(".__init__")


def imported(file: Path, tree: ast.Module) -> Iterator[str]:
    """Every module or name that a file imports, late and for types too, or names to start it."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom(level=level, module=module):
                above = ".".join(file.parts[:-level]) if level else ""
                package = ".".join(part for part in (above, module) if part)
                yield from (f"{package}.{alias.name}" for alias in node.names)
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(str(name))]):
                yield name
            case ast.Constant(str(name)) if STARTED.fullmatch(name):
                yield name


def graph(known: Mapping[Path, ast.Module]) -> Imports:
    """What each file imports: of ours, and which projects of others."""
    files = {module_of(file): file for file in known}
    inner: Graph[Path] = {file: set() for file in known}
    outer: Graph[str] = {file: set() for file in known}
    for file, tree in known.items():
        for name in imported(file, tree):
            whole = BESIDE.get(name.partition(".")[0], name) if file.parts[0] == "docker" else name
            found = files.get(whole) or files.get(whole.rpartition(".")[0])
            if found is not None:
                inner[file] |= {found} - {file}
            elif (project := name.partition(".")[0]) not in {*sys.stdlib_module_names, *OURS}:
                outer[file].add(project)
    return inner, outer


def wrong(table: Sequence[Room], inner: Graph[Path], outer: Graph[str]) -> list[str]:
    """A line for each import that the table does not allow, and each file that has no room."""
    told = []
    at: dict[Path, int] = {}
    for file in inner:
        fits = [room.fit(file) for room in table]
        if not any(fits):
            told.append(f"{file}: has no room in the table")
        at[file] = fits.index(max(fits))
    for file in inner:
        told += [f"{file}: imports {other}" for other in outer[file] - table[at[file]].others]
        told += [f"{file}: imports {found}" for found in inner[file] if at[found] > at[file]]
    return told


PAGE = (ROOT / "deploy" / "ARCHITECTURE.md").read_text("utf-8")


@pytest.fixture(scope="module")
def imports() -> Imports:
    """What each file of the product imports."""
    return graph(trees())


def test_each_room_imports_only_what_its_row_allows(
    imports: Imports,
) -> None:
    """Rooms above it in the table, the standard library, and what its row names."""
    assert wrong(rooms(PAGE), *imports) == []


def test_what_the_table_names_is_there_and_used(
    imports: Imports,
) -> None:
    """A row without files, or with a project that none of them imports, is taken out."""
    table = rooms(PAGE)
    inner, outer = imports
    for room in table:
        held = [file for file in inner if max(table, key=lambda r: r.fit(file)) is room]
        assert held, room
        assert room.others == {other for file in held for other in outer[file]}, room


def test_no_two_modules_need_each_other(imports: Imports) -> None:
    """Each can be read, and imported, after those that it names."""
    try:
        TopologicalSorter(imports[0]).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(str(file) for file in error.args[1]))


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        ("deploy/files.py", "from deploy import recipe", "deploy/recipe/__init__.py"),
        ("deploy/files.py", "from healthcheck import words", "healthcheck/words.py"),
        ("healthcheck/judge/tasks.py", "from healthcheck.verdict import want", "verdict/want.py"),
        ("patches/tree.py", "if 0:\n    import requests", "requests"),
        ("patches/tree.py", "import_module('patches.show')", ""),
        ("patches/tree.py", "run([python, '-m', 'deploy.rehearsal'])", "rehearsal/__init__.py"),
        ("docker/stacks.py", "import entrypoint", ""),
        ("patches/new/thing.py", "", "has no room in the table"),
    ],
)
def test_an_import_that_goes_up_is_found(file: str, line: str, said: str) -> None:
    """Also one that is late, and a folder that is in no row; what goes down is not."""
    changed = Path(file)
    known = trees()
    before = known[changed].body if changed in known else []
    tree = ast.Module([*before, *ast.parse(line).body], [])
    told = wrong(rooms(PAGE), *graph({**known, changed: tree}))
    assert [file] * bool(said) == [each.partition(":")[0] for each in told]
    assert all(each.endswith(said) for each in told)
