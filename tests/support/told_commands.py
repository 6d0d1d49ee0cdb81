"""Judges a command that a document tells: is it one that can be run as it stands?

Nothing of it is run here: own command lines are put before the parsers that would read them, make
targets before `make -n`, files before the checkout, options of other programs before a table that
the tests hold against those programs where they are installed.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import importlib
import itertools
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import yaml

from deploy import recipe
from deploy.containers.variables import PASSED
from deploy.recipe import switches
from deploy.rehearsal.environment import FAULTS
from deploy.validation import smoke
from healthcheck.service import app as service
from patches.loadcheck.card import CARDS
from tests.support.documents import ROOT, Command

# Words in capitals that stand for what a reader fills in, and a value that could be it.
PLACEHOLDERS = {
    "A": "a.json",
    "AFTER": "after",
    "B": "b.json",
    "BASE": "base:1",
    "BEFORE": "before",
    "FILE": "file",
    "HEALTH_BASE": "base:2",
    "HOST": "127.0.0.1",
    "JOB": "7",
    "LEVEL": "loaded",
    "LOGFILE": "server.log",
    "NAME": "mi355x",
    "NODE": "node-1",
    "SITE_PACKAGES": "site-packages",
    "TERM": "TERM",
    "TREE": "tree",
    "URL": "http://127.0.0.1:8000",
    "VERSION": recipe.load().vllm.version,
}
# `NAME=...` where any value is meant: one that could be given.
MEANT = {"PROFILE": "mi355x", "SMOKE_PROFILE": "mi355x"}

# Own programs by the module that `python3 -m` names: those with a parser, and those without.
OWN = (
    "deploy",
    "deploy.rehearsal",
    "deploy.upstream",
    "healthcheck",
    "patches",
    "tests.bench",
)
WITHOUT_PARSER: Mapping[str, Sequence[tuple[str, ...]]] = {
    "healthcheck.reference": ((), ("--check",)),
    "deploy.monitoring.dashboard": ((), ("--check",)),
    "deploy.rehearsal.image": ((), ("whole",)),
    "tests.support.debian_kubernetes": (("build",), ("up",), ("restart-kubelet",), ("down",)),
}
# Own files that are run by their path; what follows goes to the server.
SCRIPTS = ("docker/entrypoint.py", "docker/launch.py")
# What the Makefile runs of others.
MODULES_OF_OTHERS = ("mutmut", "mypy", "pip", "pytest", "ruff")

# Programs of others: their subcommands and the options of them that the documents use.
OTHERS: Mapping[tuple[str, ...], frozenset[str]] = {
    words: frozenset(options)
    for words, options in {
        ("apptainer", "build"): (),
        ("apptainer", "exec"): ("--bind", "--env", "--pwd"),
        ("diff",): ("-p", "-u"),
        ("docker", "build"): ("--build-arg", "--network", "-f", "-t"),
        ("docker", "compose"): ("--env-file", "-f"),
        ("docker", "compose", "exec"): (),
        ("docker", "compose", "restart"): (),
        ("docker", "compose", "up"): ("--wait", "-d"),
        ("docker", "exec"): (),
        ("docker", "load"): ("-i",),
        ("docker", "pull"): (),
        ("docker", "run"): ("--entrypoint", "--init", "--no-healthcheck", "--rm"),
        ("docker", "save"): ("-o",),
        ("docker", "tag"): (),
        ("git", "clone"): (),
        ("git", "pull"): (),
        ("gzip",): (),
        ("k3s", "ctr", "images", "import"): (),
        ("kind", "load", "docker-image"): (),
        ("kubectl", "apply"): ("-f", "-k"),
        ("kubectl", "config", "set-context"): ("--current", "--namespace"),
        ("kubectl", "cordon"): (),
        ("kubectl", "create", "configmap"): ("--from-literal",),
        ("kubectl", "create", "secret", "generic"): ("--from-literal",),
        ("kubectl", "describe"): (),
        ("kubectl", "drain"): ("--delete-emptydir-data", "--ignore-daemonsets"),
        ("kubectl", "exec"): ("-c",),
        ("kubectl", "get"): ("--field-selector", "-A", "-o"),
        ("kubectl", "logs"): ("--previous", "-c"),
        ("kubectl", "rollout", "status"): (),
        ("kubectl", "rollout", "undo"): (),
        ("kubectl", "taint"): (),
        ("kubectl", "uncordon"): (),
        ("kubectl", "wait"): ("--for", "--timeout"),
        ("minikube", "image", "load"): (),
        ("pip", "download"): ("--no-deps", "--require-hashes", "-d", "-r"),
        ("pip", "install"): (),
        ("sbatch",): ("--gpus", "--time"),
        ("scancel",): ("--batch", "--signal"),
        ("scontrol", "requeue"): (),
        ("squeue",): ("--job",),
        ("vi",): (),
        ("vllm", "serve"): (),
    }.items()
}
PROGRAMS = frozenset({"curl", "make", "python", "python3", *(words[0] for words in OTHERS)})

# Variables that are read and not meant to be set by a user, each with who sets it.
INTERNAL = {
    "REHEARSAL_HOME": "the rehearsal sets it for the server that it starts",
    "REHEARSAL_SITE": "`make up PROFILE=rehearsal` writes it: the packages that are mounted",
    "REHEARSAL_BASE": "as REHEARSAL_SITE: those of the environment below, which another is laid over",
    "REHEARSAL_TRIGGER": "tests set it: a file whose presence arms the fault",
    "REVISION": "`make up` reads it from git",
}

# What vLLM answers to over HTTP, of which the documents speak.
VLLM_ROUTES = (
    *("/health", "/metrics", "/version", "/tokenize", "/v1/models", "/invocations"),
    *("/generative_scoring", "/scale_elastic_ep"),
)
# Of the paths that vLLM's own guard covers, the beginnings.
GUARDED = ("/v1", "/v2", "/inference", "/cohere")
_SYSTEM = ("/dev/", "/opt/", "/path/", "/var/")

_PLACEHOLDER = re.compile(r"(?<!\w)[A-Z][A-Z_]*(?![\w=-])(\.\.\.)?")
_OPTION = re.compile(r"^(-{1,2}[A-Za-z][\w-]*)(?:=(.*))?$", re.DOTALL)
_NAME = re.compile(r"[A-Z][A-Z0-9_]+")
_RECIPE_LINE = re.compile(r"(?:python3|\"\$python\") -m ([^&;|)\"]+)")
_PACKAGES = ("deploy", "docker", "healthcheck", "patches")
_HIDDEN = frozenset({"POST", "GET"})


class Wrong(ValueError):
    """The command cannot be run as it stands; the message says why and what to do."""


def judge(command: Command) -> str:
    """The class of the command. Raises Wrong for one that belongs to none or cannot be run."""
    outer, inner = _inside(command)
    if inner is not None:
        return f"{judge(outer)} {judge(inner)}"
    program, rest = command.words[0], command.words[1:]
    if program == "make":
        return _make(command, rest)
    if re.fullmatch(r"python(3(\.\d+)?)?", program):
        return _python(command, rest)
    _paths(command.words)
    if program == "curl":
        return _curl(rest)
    if program in {words[0] for words in OTHERS}:
        return _other(command)
    raise Wrong(
        f"{program}: belongs to no class of command; name the whole command (python3 -m ...), or"
        " add its program to OTHERS in tests/support/told_commands.py"
    )


def parts(command: Command) -> list[Command]:
    """The command itself, and what it runs inside a container or by `python3 -m pip`."""
    outer, inner = _inside(command)
    words = outer.words
    if words[1:3] == ("-m", "pip"):
        outer = dataclasses.replace(outer, words=("pip", *words[3:]))
    return [outer, *([inner] if inner else [])]


def _inside(command: Command) -> tuple[Command, Command | None]:
    """The command without what it runs inside a container, and that."""
    words = command.words
    if words[:2] == ("kubectl", "exec") and "--" in words:
        cut = words.index("--")
        inner = words[cut + 1 :]
    elif words[:2] == ("docker", "compose") and "exec" in words:
        cut = words.index("exec") + 2
        inner = words[cut:]
    elif words[:2] == ("apptainer", "exec"):
        cut = next((n for n, word in enumerate(words, 1) if word.endswith(".sif")), len(words))
        inner = words[cut:]
    else:
        return command, None
    if not inner:
        return command, None
    outer = dataclasses.replace(command, words=words[:cut])
    return outer, dataclasses.replace(command, environment=(), words=inner)


def filled(word: str) -> str:
    """The word with its placeholders filled in. Raises Wrong for one that is not known."""

    def value(match: re.Match[str]) -> str:
        name = match[0].removesuffix("...")
        if name in _HIDDEN:
            return match[0]
        if name not in PLACEHOLDERS:
            raise Wrong(
                f"{name}: is no placeholder that is known; use one of {', '.join(PLACEHOLDERS)}, or"
                " add it to PLACEHOLDERS in tests/support/told_commands.py"
            )
        return PLACEHOLDERS[name]

    return word if re.fullmatch(r"-\w", word) else _PLACEHOLDER.sub(value, word)


# --- own programs


class _Reached(BaseException):
    """The parser of a program, and what it was to read; nothing of the program has run."""

    def __init__(self, parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
        super().__init__()
        self.parser = parser
        self.arguments = arguments


def parser_of(module: str, arguments: Sequence[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser that reads the arguments of `python3 -m MODULE`, and those that come to it.

    The program's own `main` leads there and is left at the moment it would parse.
    """

    def reached(
        parser: argparse.ArgumentParser, argv: Sequence[str] | None = None, *_: Any
    ) -> NoReturn:
        raise _Reached(parser, argv or [])

    path = ROOT / module.replace(".", "/")
    name = f"{module}.__main__" if path.is_dir() else module
    main = importlib.import_module(name).main
    with mock.patch.object(argparse.ArgumentParser, "parse_args", reached):
        try:
            main(list(arguments))
        except _Reached as found:
            return found.parser, list(found.arguments)
    raise AssertionError(f"{module}: has run instead of parsing: {arguments}")


def own(module: str, arguments: Sequence[str]) -> None:
    """Let the parser of an own program judge. Raises Wrong for what it refuses."""
    if module in WITHOUT_PARSER:
        if tuple(arguments) not in WITHOUT_PARSER[module]:
            raise Wrong(f"{module}: does not take {shlex.join(arguments)}")
        return
    if module not in OWN:
        raise Wrong(
            f"python3 -m {module}: is no program of ours; mend the name, or add it to OWN in"
            " tests/support/told_commands.py"
        )
    parser, left = parser_of(module, arguments)
    for one in _with_inner(parser):
        one.allow_abbrev = False  # half an option works until another one begins like it

    def refuse(_: argparse.ArgumentParser, message: str) -> NoReturn:
        raise Wrong(message)

    try:
        with mock.patch.object(argparse.ArgumentParser, "error", refuse):
            made = parser.parse_args(left)
    except SystemExit:  # --help
        return
    except Exception as e:  # also a parser's own
        raise Wrong(f"{parser.prog}: refuses {shlex.join(left)}: {e}") from e
    profile = getattr(made, "profile", None)
    if profile is not None:
        check_value("PROFILE", profile)


def _python(command: Command, rest: Sequence[str]) -> str:
    if rest[:1] == ("-m",) and len(rest) > 1:
        module, arguments = rest[1], [filled(word) for word in rest[2:]]
        if module == "pip":
            _paths(rest)
            return _other(parts(command)[0])
        own(module, arguments)
        _environment(command, read_by(module, arguments))
        return "own"
    if rest and rest[0] in SCRIPTS:
        flags = recipe.load().vllm.vocabulary.flags
        for word in rest[1:]:
            option = _OPTION.match(word)
            if option and option[1].removeprefix("--") not in flags:
                raise Wrong(
                    f"{option[1]}: is no flag of vllm serve {recipe.load().vllm.vocabulary.vllm_version}"
                )
        _environment(command, _closure([ROOT / rest[0]]))
        return "script"
    raise Wrong(
        f"{' '.join(rest[:2])}: is no program of ours; name one of python3 -m {', '.join(OWN)}, or"
        " add the file to SCRIPTS in tests/support/told_commands.py"
    )


# --- make


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


def _make(command: Command, rest: Sequence[str]) -> str:
    rules, variables = makefile()
    given = [*command.environment]
    targets = []
    for word in rest:
        name, equals, value = word.partition("=")
        if equals:
            given.append((name, value))
        else:
            targets.append(word)
    for target in targets or ["help"]:
        if target not in rules:
            raise Wrong(f"make {target}: is no target; `make` lists them")
        lines = _dry([target, *(f"{name}={_value(name, value)}" for name, value in given)])
        read: set[str] = set()
        for module, arguments in lines:
            if module not in MODULES_OF_OTHERS:
                own(module, arguments)
                read |= read_by(module, arguments)
        read |= {name for name in variables if f"$${name}" in rules[target]}
        for name, _ in given:
            if name not in read:
                raise Wrong(f"make {target}: nothing that it runs reads {name}")
    for name, value in given:
        check_value(name, _value(name, value))
    return "make"


def _dry(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """What `make -n` would run of Python: modules with their arguments."""
    done = subprocess.run(
        ["make", "-n", "PYTHON=python3", *words],
        cwd=ROOT,
        # The make that may run this test must not have a say.
        env={k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode:
        raise Wrong(f"make -n {shlex.join(words)}: {done.stderr.strip()}")
    text = (ROOT / "Makefile").read_text("utf-8")
    values = dict(re.findall(r"^([A-Z]+) \?= (.*)$", text, re.MULTILINE))
    values |= dict(word.split("=", 1) for word in words if "=" in word) | {"PYTHON": "python3"}
    # As the shell would put the variables in.
    shown = re.sub(r'"?\$([A-Z]+)"?', lambda m: values.get(m[1], ""), done.stdout)
    return [
        (found[0], found[1:])
        for match in _RECIPE_LINE.finditer(shown)
        if (found := shlex.split(match[1]))
    ]


# --- variables


def _value(name: str, value: str) -> str:
    return MEANT.get(name, "value") if value == "..." else filled(value)


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


def _environment(command: Command, read: Iterable[str]) -> None:
    names = set(read) | foreign_variables()
    for name, value in command.environment:
        if name not in names:
            raise Wrong(f"{name}: nothing that the command runs reads it")
        check_value(name, _value(name, value))


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


# --- programs of others


def _other(command: Command) -> str:
    words = command.words
    if words[:2] == ("docker", "compose"):
        files = compose_files(words)
        _environment(command, interpolated(*files) if files else ())
        _service(words, files)
    elif words[0] == "sbatch":
        _environment(command, job_variables(ROOT / words[-1]))
    else:
        _environment(command, ())
    _options(words, command)
    if words[0] == "kubectl":
        _kubectl(words)
    if words[:2] == ("pip", "install") and any(word.startswith("dspark") for word in words):
        raise Wrong("pip install: no index has this project; name the checkout, as in '.[grpc]'")
    if words[:2] == ("docker", "build"):
        _build(words)
    if words[:2] == ("vllm", "serve"):
        known = recipe.load().vllm.vocabulary.flags
        for word in words[2:]:
            option = _OPTION.match(word)
            if option and option[1].removeprefix("--") not in known:
                raise Wrong(f"{option[1]}: is no flag of vllm serve")
    return words[0]


def subcommand(words: Sequence[str]) -> tuple[str, ...]:
    """The longest row of OTHERS that the words begin with, options before it left out."""
    plain = list(words)
    if tuple(plain[:2]) == ("docker", "compose"):
        head, tail = plain[:2], plain[2:]
        while tail and tail[0] in OTHERS["docker", "compose"]:
            tail = tail[2:]
        plain = head + tail
    found = [known for known in OTHERS if tuple(plain[: len(known)]) == known]
    if not found:
        raise Wrong(
            f"{' '.join(plain[:3])}: is not among the commands that the documents use; mend it, or"
            " add it to OTHERS in tests/support/told_commands.py"
        )
    return max(found, key=len)


def _options(words: Sequence[str], command: Command) -> None:
    known = subcommand(words)
    if known == ("vllm", "serve"):
        return
    if known == ("docker", "compose") and len(words) > 2:
        raise Wrong(f"{command.text}: no subcommand of docker compose that OTHERS knows")
    allowed = OTHERS[known] | (OTHERS["docker", "compose"] if known[1:2] == ("compose",) else set())
    unknown = options(words) - allowed
    if unknown:
        raise Wrong(
            f"{' '.join(known)} {' '.join(sorted(unknown))}: is not among the options that the"
            " documents use; mend it, or add it to OTHERS in tests/support/told_commands.py"
        )


def options(words: Sequence[str]) -> set[str]:
    """The options among the words; letters that stand together behind one dash are taken apart."""
    found: set[str] = set()
    for word in words:
        if match := _OPTION.match(filled(word)):
            is_long = match[1].startswith("--")
            found |= {match[1]} if is_long else {f"-{letter}" for letter in match[1][1:]}
    return found


def compose_files(words: Sequence[str]) -> list[Path]:
    """The files of a `docker compose` command. Raises Wrong for one that is not there."""
    files = [
        ROOT / word for option, word in itertools.pairwise(words) if option in ("-f", "--file")
    ]
    for file in files:
        if not file.is_file():
            raise Wrong(f"{file.relative_to(ROOT)}: is not there")
    return files


def _service(words: Sequence[str], files: Sequence[Path]) -> None:
    text = "".join(file.read_text("utf-8") for file in files)
    for verb, name in itertools.pairwise(words):
        if verb in ("exec", "restart") and f"\n  {name}:\n" not in text:
            raise Wrong(f"docker compose {verb} {name}: no such service in {len(files)} files")


def _paths(words: Sequence[str]) -> None:
    """Raises Wrong for a path below a folder of the checkout that is not there."""
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"build", "dist"}
    for word in words:
        first, slash, _ = word.partition("/")
        if slash and first in folders and not any(ROOT.glob(word)):
            raise Wrong(f"{word}: is not there")


def _build(words: Sequence[str]) -> None:
    texts = "".join(p.read_text("utf-8") for p in (ROOT / "docker").glob("Dockerfile*"))
    for option, value in itertools.pairwise(words):
        name = value.partition("=")[0]
        if option == "--build-arg" and not re.search(rf"^ARG {name}\b", texts, re.MULTILINE):
            raise Wrong(f"--build-arg {name}: no Dockerfile has such an ARG")


@functools.cache
def deployments() -> frozenset[str]:
    """Names of the Deployments that the overlays make."""
    k8s = ROOT / "deploy/k8s"
    name = yaml.safe_load((k8s / "base/deployment.yaml").read_text("utf-8"))["metadata"]["name"]
    overlays = k8s.glob("overlays/*/kustomization.yaml")
    return frozenset(
        name + yaml.safe_load(path.read_text("utf-8"))["nameSuffix"] for path in overlays
    )


def _kubectl(words: Sequence[str]) -> None:
    base = (ROOT / "deploy/k8s/base/deployment.yaml").read_text("utf-8")
    for before, word in itertools.pairwise(words):
        if before == "-k" and not (ROOT / word / "kustomization.yaml").is_file():
            raise Wrong(f"{word}: has no kustomization.yaml")
        if before == "-f" and not (ROOT / word).is_file():
            raise Wrong(f"{word}: is not there")
        kind, slash, name = word.partition("/")
        if slash and kind == "deployment" and filled(name) not in deployments():
            raise Wrong(f"{word}: no overlay makes it; it is one of {', '.join(deployments())}")
        if before == "-c" and f"- name: {word}\n" not in base:
            raise Wrong(f"-c {word}: the pod has no such container")
        if before == "generic" and f"secretName: {word}\n" not in base:
            raise Wrong(f"secret {word}: the deployment does not read it")
        if before == "configmap" and f"configMapRef:\n                name: {word}\n" not in base:
            raise Wrong(f"configmap {word}: the deployment does not read it")
        option = _OPTION.match(word)
        if "secret" in words and option and option[1] in ("--from-literal", "--from-file"):
            key = (option[2] or "").partition("=")[0]
            if not re.search(rf"(key: |/dspark/){re.escape(key)}$", base, re.MULTILINE):
                raise Wrong(f"{word}: the deployment reads no {key} of the secret")


def _curl(rest: Sequence[str]) -> str:
    for word in rest:
        option = _OPTION.match(word)
        if option and option[1] not in ("-f", "-s", "-S", "-fsS", "-X", "-H", "-N"):
            raise Wrong(f"curl {option[1]}: add it to _curl in tests/support/told_commands.py")
        if "://" in word:
            check_url(filled(word))
    return "curl"


@functools.cache
def routes() -> frozenset[str]:
    """Paths of the health service."""
    made = service.app(mock.MagicMock(), mock.MagicMock())
    return frozenset(str(getattr(route, "path", "")) for route in made.routes)


def check_url(url: str) -> None:
    """Raises Wrong for a port or path of this host that neither server nor health service has."""
    match = re.fullmatch(r"https?://[^/:]+(?::(\d+))?(/[^?#]*)?([?#].*)?", url)
    if match is None:
        raise Wrong(f"{url}: is no URL")
    ports = recipe.load().ports
    known = {ports.serve: VLLM_ROUTES, ports.health: tuple(routes())}
    port = int(match[1] or 0)
    if port not in known:
        raise Wrong(f"{url}: port {port} is neither the server's nor the health service's")
    if match[2] and match[2] not in known[port] and match[2] != "/":
        raise Wrong(f"{url}: {match[2]} is no route there")


def check_path(path: str) -> None:
    """Raises Wrong for inline code that looks like a route and is none, nor a place of a system."""
    plain = path.partition("?")[0]
    known = {*routes(), *VLLM_ROUTES, *GUARDED}
    if plain not in known and not plain.startswith(_SYSTEM):
        raise Wrong(f"{path}: is a route of neither the server nor the health service")


# --- options by themselves


@functools.cache
def all_options() -> frozenset[str]:
    """Every long option of own programs, of `vllm serve`, and those of OTHERS."""
    found = {f"--{flag}" for flag in recipe.load().vllm.vocabulary.flags} | {
        option for options in OTHERS.values() for option in options
    }
    for parser in parsers():
        found |= {option for action in parser._actions for option in action.option_strings}
    return frozenset(found | {"--check"})


@functools.cache
def parsers() -> tuple[argparse.ArgumentParser, ...]:
    """The parsers of all own programs, with those of their subcommands."""
    found = [parser_of("healthcheck", ("smoke", "compare"))[0]]
    for module in OWN:
        top = parser_of(module, ("--help",))[0]
        found += _with_inner(top)
        found += [parser_of(module, (name, "--help"))[0] for name in _inner(top)]
    return tuple(found)


def _with_inner(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    inner = [one for found in _inner(parser).values() for one in _with_inner(found)]
    return [parser, *inner]


def _inner(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    return {}


def subcommands(module: str) -> frozenset[str]:
    """The commands of an own program, none for one that has no commands."""
    return frozenset(_inner(parser_of(module, ("--help",))[0]))
