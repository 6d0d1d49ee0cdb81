"""The question of the compile proof to one card's process, and what it answers."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from patches.compile.launch import Launch
from patches.compile.recorder import Kernel
from patches.compile.shapes import Shapes
from patches.errors import PatchesError
from patches.loadcheck import process

TIMEOUT_S = 1800.0
"""A card's kernels are compiled in a minute on an idle core."""

_INSIDE = "patches.compile.inside"  # which imports every launch
_COMPILERS = ("torch", "triton")


class NoCompilerError(PatchesError):
    """This Python has nothing to compile kernels with; the message is one line."""


@dataclass(frozen=True)
class Card:
    """Profiles that share architecture and compute units, which vLLM asks for once."""

    arch: str
    compute_units: int
    shapes: tuple[Shapes, ...]


@dataclass(frozen=True)
class Answer:
    """What `inside.answers` said in the end; `died`: why it said nothing."""

    versions: Mapping[str, str]
    kernels: tuple[Kernel, ...]
    stopped: tuple[Mapping[str, str], ...]
    died: str | None = None


def ask(
    root: Path, card: Card, chosen: Sequence[Launch], folder: Path, environ: Mapping[str, str]
) -> Answer:
    """Compile what `chosen` launches in the tree at `root`, in a process; write to `folder` only.

    A launch that ends the process is told as stopped, and the rest asked for again. Questions that
    share a folder share Triton's cache: the same code is compiled once.
    """
    launches = [launch.name for launch in chosen if card.arch in launch.archs]
    ended: list[Mapping[str, str]] = []
    while True:
        question = {
            "root": str(root),
            "arch": card.arch,
            "compute_units": card.compute_units,
            "shapes": [asdict(shapes) for shapes in card.shapes],
            "launches": launches,
        }
        said, why = _run(question, _environment(root, card.arch, folder, environ), folder)
        running = said["running"] if said else None
        if said and running is None:
            kernels = tuple(Kernel(**kernel) for kernel in said["kernels"])
            return Answer(said["versions"], kernels, (*ended, *said["stopped"]))
        if running is None:
            return Answer({}, (), tuple(ended), why)
        launches.remove(running["launch"])
        ended += [
            {"launch": running["launch"], "profile": shapes.profile, "why": why}
            for shapes in card.shapes
        ]


def _run(
    question: Mapping[str, Any], environment: Mapping[str, str], folder: Path
) -> tuple[dict[str, Any] | None, str]:
    """The last answer of a process, None without any, and how it ended if not well."""
    try:
        ended = process.ask(_INSIDE, question, environment, folder, TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None, f"compiling took longer than {TIMEOUT_S:g} s"
    return ended.said, ended.why


def need_compilers() -> None:
    """Raises NoCompilerError where torch or Triton is not installed for this Python."""
    missing = [name for name in _COMPILERS if importlib.util.find_spec(name) is None]
    if missing:
        raise NoCompilerError(
            f"compile: {' and '.join(missing)}: not installed for {sys.executable}: use vLLM's own"
        )


def _environment(root: Path, arch: str, folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """As the load check's, but that kernels are compiled, into a cache that begins empty."""
    made = process.environment(root, environ, folder) | {
        "GPU_ARCHS": arch,
        "HIP_VISIBLE_DEVICES": "",
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }
    del made["TRITON_INTERPRET"]
    return made
