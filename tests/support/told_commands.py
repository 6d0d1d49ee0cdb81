"""Judges a command that a document tells: is it one that can be run as it stands?

Nothing of it is run here: own command lines are put before the parsers that would read them, make
targets before `make -n`, files before the checkout, options of other programs before a table that
the tests hold against those programs where they are installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn
from unittest import mock

from deploy import recipe
from tests.support.documents import ROOT, Command
from tests.support.told_programs import OTHERS, check_paths, judge_other
from tests.support.told_routes import check_url
from tests.support.told_variables import (
    check_environment,
    check_value,
    makefile,
    read_by,
    read_by_file,
)
from tests.support.told_words import OPTION, Wrong, filled, value_of

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

_RECIPE_LINE = re.compile(r"(?:python3|\"\$python\") -m ([^&;|)\"]+)")


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
    check_paths(command.words)
    if program == "curl":
        return _curl(rest)
    if program in {words[0] for words in OTHERS}:
        return judge_other(command)
    raise Wrong(
        f"{program}: belongs to no class of command; name the whole command (python3 -m ...), or"
        " add its program to OTHERS in tests/support/told_programs.py"
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
            check_paths(rest)
            return judge_other(parts(command)[0])
        own(module, arguments)
        check_environment(command, read_by(module, arguments))
        return "own"
    if rest and rest[0] in SCRIPTS:
        flags = recipe.load().vllm.vocabulary.flags
        for word in rest[1:]:
            option = OPTION.match(word)
            if option and option[1].removeprefix("--") not in flags:
                raise Wrong(
                    f"{option[1]}: is no flag of vllm serve {recipe.load().vllm.vocabulary.vllm_version}"
                )
        check_environment(command, read_by_file(ROOT / rest[0]))
        return "script"
    raise Wrong(
        f"{' '.join(rest[:2])}: is no program of ours; name one of python3 -m {', '.join(OWN)}, or"
        " add the file to SCRIPTS in tests/support/told_commands.py"
    )


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
        lines = dry([target, *(f"{name}={value_of(name, value)}" for name, value in given)])
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
        check_value(name, value_of(name, value))
    return "make"


def dry(words: Sequence[str]) -> list[tuple[str, list[str]]]:
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


def _curl(rest: Sequence[str]) -> str:
    for word in rest:
        option = OPTION.match(word)
        if option and option[1] not in ("-f", "-s", "-S", "-fsS", "-X", "-H", "-N"):
            raise Wrong(f"curl {option[1]}: add it to _curl in tests/support/told_commands.py")
        if "://" in word:
            check_url(filled(word))
    return "curl"


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
