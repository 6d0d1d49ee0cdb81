"""The names that a tree of sources knows, asked from its own parser, and how they differ from a
release's vocabulary."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy import plan, recipe
from deploy.files import write_whole
from deploy.plan import PlanError, arguments
from deploy.plan.arguments import ArgumentsError
from deploy.recipe import release, vocabulary
from patches.loadcheck import draft, process

TIMEOUT_S = 600.0
"""Importing vLLM takes 10 s on an idle machine, minutes on a cold disk."""


@dataclass(frozen=True)
class Names:
    """Names new and gone since a release, flags that take other values, and what of the recipe the
    tree does not know, one line each."""

    since: str
    new: Mapping[str, tuple[str, ...]]
    gone: Mapping[str, tuple[str, ...]]
    other: tuple[str, ...]
    unknown: tuple[str, ...]


class NamesError(RuntimeError):
    """The tree could not be asked; the message is the last line of what it said."""


def write(root: Path) -> Path:
    """Write what the tree at `root` knows to its release's folder, and return the file.

    As a difference where the release has a base. Raises NamesError, RecipeError for a release that
    has no folder.
    """
    found = ask(root)
    *base, folder = release.load(found["vllm"]).folders
    if base:
        whole = vocabulary.content(*(each / vocabulary.NAME for each in base))
        found = vocabulary.difference(found, whole)
    file = folder / vocabulary.NAME
    write_whole(file, json.dumps(found, indent=1) + "\n")
    return file


def compare(root: Path, known: release.Release) -> Names:
    """How the names of the tree at `root` differ from those of `known`. Raises NamesError."""
    with tempfile.TemporaryDirectory(prefix="names-") as scratch:
        file = Path(scratch, vocabulary.NAME)
        _ask(root, file)
        return between(file, known)


def ask(root: Path) -> dict[str, Any]:
    """What `vocabulary.from_vllm` gives of the tree at `root`. Raises NamesError."""
    with tempfile.TemporaryDirectory(prefix="names-") as scratch:
        file = Path(scratch, vocabulary.NAME)
        _ask(root, file)
        return vocabulary.content(file)


def between(file: Path, known: release.Release) -> Names:
    """How the vocabulary in a file, whole, differs from that of `known`."""
    whole = vocabulary.content(file)
    base = vocabulary.content(*(folder / vocabulary.NAME for folder in known.folders))
    kinds = ("flags", "environment", "speculative")
    shared = sorted(whole["flags"].keys() & base["flags"].keys())
    return Names(
        since=known.version,
        new={kind: tuple(sorted(set(whole[kind]) - set(base[kind]))) for kind in kinds},
        gone={kind: tuple(sorted(set(base[kind]) - set(whole[kind]))) for kind in kinds},
        other=tuple(name for name in shared if _other(base["flags"][name], whole["flags"][name])),
        unknown=_unknown(vocabulary.load(file), known.vocabulary),
    )


def _other(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether what was written for a flag may be read otherwise: more spellings, values and keys do
    not matter, and a switch that can be negated now is the same without."""
    kinds = (before["kind"], after["kind"])
    if kinds[0] != kinds[1] and kinds != ("bool", "switch") and kinds != ("switch", "bool"):
        return True
    if set(before.get("aliases", ())) - set(after.get("aliases", ())):
        return True
    for key in ("choices", "keys"):
        if after.get(key) and set(before.get(key, ())) - set(after[key]):
            return True
    return any(before.get(key) != after.get(key) for key in ("bare", "of"))


def _unknown(words: vocabulary.Vocabulary, known: vocabulary.Vocabulary) -> tuple[str, ...]:
    """What the profiles with a card give that the tree would refuse, or pass over."""
    found: list[str] = []
    for profile in recipe.load().profiles.values():
        if profile.gpu is None:
            continue
        try:
            # Without the command and the model, which are no flags.
            arguments.read(plan.make(profile).argv[3:], words)
        except (ArgumentsError, PlanError) as error:
            found.append(str(error))
        lost = (profile.env.keys() & known.environment) - words.environment
        found += [f"{name}: the recipe sets it, and nothing reads it" for name in sorted(lost)]
        keys = (profile.speculative or {}).keys() - words.speculative
        found += [f"speculative-config: {key}: is no key of it" for key in sorted(keys)]
    return tuple(dict.fromkeys(found))


def _ask(root: Path, file: Path) -> None:
    """Write the tree's vocabulary to a file, from a process of its own."""
    environ = process.environment(root, os.environ, file.parent)
    command = [sys.executable, "-P", "-m", __name__, str(file)]
    try:
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NamesError(f"it took longer than {TIMEOUT_S:g} s") from None
    if done.returncode:
        raise NamesError((done.stderr.strip().splitlines() or ["no output"])[-1])


def _answer(file: Path) -> None:
    """Inside that process: a tree without the marks of a build for the CPU finds no platform."""
    draft.stand_on_cpu()
    file.write_text(json.dumps(vocabulary.from_vllm()), encoding="utf-8")


if __name__ == "__main__":
    _answer(Path(sys.argv[1]))
