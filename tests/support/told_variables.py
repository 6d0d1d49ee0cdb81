"""Variables that commands set: what reads them, and which values they take."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy import recipe
from deploy.containers.variables import PASSED
from deploy.recipe import switches
from deploy.rehearsal.environment import FAULTS
from deploy.validation import smoke
from patches.loadcheck.card import CARDS
from tests.support.documents import ROOT, Command
from tests.support.told_words import Wrong, value_of

# Variables that are read and not meant to be set by a user, each with who sets it.
INTERNAL = {
    "REHEARSAL_HOME": "the rehearsal sets it for the server that it starts",
    "REHEARSAL_SITE": "`make up PROFILE=rehearsal` writes it: the packages that are mounted",
    "REHEARSAL_BASE": "as REHEARSAL_SITE: those of the environment below, which another is laid over",
    "REHEARSAL_TRIGGER": "tests set it: a file whose presence arms the fault",
    "REVISION": "`make up` reads it from git",
}

_NAME = re.compile(r"[A-Z][A-Z0-9_]+")
_PACKAGES = ("deploy", "docker", "healthcheck", "patches")


@functools.cache
def makefile() -> tuple[dict[str, str], frozenset[str]]:
    """The recipe of each target, and the variables that a user may set."""
    text = (ROOT / "Makefile").read_text("utf-8")
    defined = dict(re.findall(r"^(\w+) = (.*)$", text, re.MULTILINE))
    rules = {}
    for match in re.finditer(r"^([a-z-]+):.*\n((?:\t.*\n?)+)", text, re.MULTILINE):
        body = match[2]
        for name, value in defined.items():
            body = body.replace(f"$({name})", value)
        rules[match[1]] = body
    return rules, frozenset(defined["words"].split())


@functools.cache
def choices() -> Mapping[str, Sequence[str]]:
    """Variables that take one of a few values."""
    profiles = tuple(recipe.load().profiles)
    return {
        "PROFILE": profiles,
        "DSPARK_PROFILE": profiles,
        "SMOKE_PROFILE": profiles,
        "SMOKE_SIZE": tuple(smoke.SIZES),
        "DSPARK_SPECULATION": ("on", "off"),
        "DSPARK_GRAPHS": ("on", "off"),
        "DSPARK_PREFLIGHT": switches.PREFLIGHTS,
        "COMPILE_PROOF": switches.COMPILE_PROOFS,
        "REHEARSAL_FAULT": FAULTS,
        "REHEARSAL_ARCH": tuple(CARDS),
    }


def check_value(name: str, value: str) -> None:
    """Raises Wrong for a value that the variable does not take."""
    known = choices().get(name)
    if known is not None and value not in known:
        raise Wrong(f"{name}: got {value}; it is one of {', '.join(known)}")


def check_environment(command: Command, read: Iterable[str]) -> None:
    """Raises Wrong for a variable before the command that is not among those read."""
    names = set(read) | foreign_variables()
    for name, value in command.environment:
        if name not in names:
            raise Wrong(f"{name}: nothing that the command runs reads it")
        check_value(name, value_of(name, value))


@functools.cache
def foreign_variables() -> frozenset[str]:
    """Variables of vLLM and of what the recipe sets."""
    set_by_recipe = {name for p in recipe.load().profiles.values() for name in p.env}
    return recipe.load().vllm.vocabulary.environment | set_by_recipe


@functools.cache
def interpolated(*files: Path) -> frozenset[str]:
    """Variables that compose files read."""
    texts = (re.sub(r"^\s*#.*$", "", f.read_text("utf-8"), flags=re.MULTILINE) for f in files)
    return frozenset(name for t in texts for name in re.findall(r"\$\{([A-Z][A-Z0-9_]*)", t))


def job_variables(script: Path) -> frozenset[str]:
    """Variables that a job's script reads, or passes on by name."""
    text = re.sub(r"^#.*$", "", script.read_text("utf-8"), flags=re.MULTILINE)
    passed = " ".join(re.findall(r"for name in ([A-Z_ ]+);", text))
    return frozenset([*re.findall(r"\$\{([A-Z][A-Z0-9_]*)[:-]", text), *passed.split()])


@functools.cache
def all_read() -> frozenset[str]:
    """Every variable that code, compose files, Dockerfiles, jobs or the Makefile read."""
    found: set[str] = set(makefile()[1])
    for script in (ROOT / "deploy/slurm").glob("*.sbatch"):
        found |= job_variables(script)
    for package in (*_PACKAGES, "tests/kubernetes"):  # whose drills a user runs on his cluster
        for path in (ROOT / package).rglob("*.py"):
            found |= _strings(path)
    found |= interpolated(*sorted((ROOT / "deploy").glob("compose*.yaml")))
    for dockerfile in (ROOT / "docker").glob("Dockerfile*"):
        found |= set(re.findall(r"^ARG ([A-Z_]+)", dockerfile.read_text("utf-8"), re.MULTILINE))
    return frozenset(found)


@functools.cache
def for_users() -> frozenset[str]:
    """Variables that a document has to speak of, or INTERNAL to explain."""
    ours = re.compile(r"(DSPARK|SMOKE|REHEARSAL|HEALTH)_[A-Z_]+")
    compose = interpolated(*sorted((ROOT / "deploy").glob("compose*.yaml")))
    named = {name for name in all_read() if ours.fullmatch(name)}
    return frozenset(named | set(PASSED) | compose | makefile()[1])


def read_by(module: str, arguments: Sequence[str]) -> frozenset[str]:
    """Variables that `python3 -m MODULE ARGUMENTS` can come to read."""
    return _read_by(module, next(iter(arguments), ""))


@functools.cache
def _read_by(module: str, first: str) -> frozenset[str]:
    folder = ROOT / module.replace(".", "/")
    main = folder / "__main__.py" if folder.is_dir() else folder.with_suffix(".py")
    elsewhere: Mapping[str, Any] = {}
    if main.name == "__main__.py":
        elsewhere = getattr(importlib.import_module(f"{module}.__main__"), "ELSEWHERE", {})
    named = elsewhere.get(first)
    beside = _file(named[0] if isinstance(named, tuple) else f"{module}.{first}")
    # A command of a module of its own reads what that one reads, not what its neighbours do.
    found = _strings(main) | _closure([beside, *_used(module, main, first)] if beside else [main])
    if _file("deploy.containers.cli") in _reach([beside or main]):
        found |= interpolated(ROOT / "deploy/compose.yaml", ROOT / "deploy/compose.rehearsal.yaml")
    return found


def _used(module: str, main: Path, command: str) -> list[Path]:
    """The module's files that the program's own function for a command uses, `run_plan` for one."""
    for node in _tree(main).body:
        if isinstance(node, ast.FunctionDef) and node.name == f"run_{command}":
            names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            imported = {
                alias.asname or alias.name: f"{each.module}.{alias.name}"
                for each in _tree(main).body
                if isinstance(each, ast.ImportFrom)
                for alias in each.names
            }
            found = (_file(imported[name]) for name in names & imported.keys())
            return [file for file in found if file is not None]
    return []


def read_by_file(file: Path) -> frozenset[str]:
    """Variables that a file that is run, or what it imports, can come to read."""
    return _closure([file])


def _closure(files: Iterable[Path]) -> frozenset[str]:
    return frozenset(name for path in _reach(files) for name in _strings(path))


def _reach(files: Iterable[Path]) -> set[Path]:
    """The files, and all of ours that they import or name as a module to run."""
    reached: set[Path] = set()
    waiting = list(files)
    while waiting:
        path = waiting.pop()
        if path not in reached:
            reached.add(path)
            waiting += _named(path)
    return reached


@functools.cache
def _file(module: str, *, run: bool = False) -> Path | None:
    """The file of a module of ours, as it is imported or as `python3 -m` runs it."""
    path = ROOT / module.replace(".", "/")
    inside = ("__main__.py", "__init__.py") if run else ("__init__.py",)
    for file in (path.parent / f"{path.name}.py", *(path / name for name in inside)):
        if module.partition(".")[0] in (*_PACKAGES, "tests") and file.is_file():
            return file
    return None


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@functools.cache
def _strings(path: Path) -> frozenset[str]:
    """Texts of the code that could be a variable's name, each the whole of a constant."""
    constants = (n.value for n in ast.walk(_tree(path)) if isinstance(n, ast.Constant))
    return frozenset(v for v in constants if isinstance(v, str) and _NAME.fullmatch(v))


@functools.cache
def _named(path: Path) -> frozenset[Path]:
    return frozenset(_each_named(path))


def _each_named(path: Path) -> Iterator[Path]:
    for node in ast.walk(_tree(path)):
        names: list[str] = []
        run = False
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # A bare name is a word of many meanings, but for the one that is run by it alone.
            run = bool(re.fullmatch(r"healthcheck|[a-z_]+(\.[a-z_]+)+", node.value))
            names = [node.value] if run else []
        for name in names:
            if (file := _file(name, run=run)) is not None:
                yield file
