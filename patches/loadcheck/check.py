"""The load check of one tree, from outside: ask `inside` in a process, and judge what it says."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from patches.audit.contract import contract
from patches.audit.tree import open_tree
from patches.errors import PatchesError
from patches.loadcheck import inside, process
from patches.loadcheck.draft import ARCHITECTURE
from patches.loadcheck.inside import LEVELS, NOT_IMPORTED
from patches.series import Series
from patches.tree import find

PLATFORM = "amd"
TIMEOUT_S = 900.0
"""Importing vLLM takes 10 s on an idle machine, minutes on a cold disk."""


class LoadCheckError(PatchesError):
    """The draft class of the tree cannot serve; the message is one line."""


@dataclass(frozen=True)
class Loaded:
    """What was reached. `stopped_by` says why no higher level was; None at the highest one."""

    level: str
    stopped_by: str | None
    class_name: str
    read: tuple[str, ...]
    required: tuple[str, ...]

    def as_data(self) -> dict[str, Any]:
        """Plain data for the provenance: ``level``, ``stopped_by``, ``class_name``, ``read``,
        ``required``."""
        return asdict(self)

    def sentence(self) -> str:
        """One line for a reader."""
        count = f"{len(self.read)} of {len(self.required)} attributes read"
        told = f"{self.class_name}: {self.level}, {count}"
        return f"{told}; no further: {self.stopped_by}" if self.stopped_by else told

    def reached(self, level: str) -> bool:
        """Whether the check came to `level`, one of `inside.LEVELS`, or beyond."""
        return LEVELS.index(self.level) >= LEVELS.index(level)


def check(
    root: Path,
    series: Series,
    speculative: Mapping[str, Any],
    environ: Mapping[str, str] = os.environ,
) -> Loaded:
    """Run the load check on the tree at `root`, with this interpreter and its packages.

    `speculative` is the server's speculative configuration: the draft is loaded with it, and what
    its options keep out of reach is not asked for.

    A machine that lacks something (torch, a library of the GPU's) lowers the level, which is no
    error. Raises `LoadCheckError` when the draft lacks an attribute that shared code reads, when
    one has another value than its source says, when a patched file raises, or when vLLM loads
    another class; and what `contract` raises.
    """
    package = find(root).package
    asked = contract(open_tree(root), ARCHITECTURE, PLATFORM, speculative)
    changed = {target.path for patch in series.patches for target in patch.targets}
    question = {
        "class": asked.class_name,
        "speculative": dict(speculative),
        "items": [item.as_data() for item in asked.items],
        "sources": [str((package.parent / path).resolve()) for path in sorted(changed)],
    }
    answered = _ask(package.parent, question, environ)
    if answered["faults"]:
        raise LoadCheckError(f"load check of {asked.class_name}: {'; '.join(answered['faults'])}")
    return Loaded(
        level=answered["level"],
        stopped_by=answered["stopped_by"],
        class_name=asked.class_name,
        read=tuple(answered["read"]),
        required=tuple(item.path for item in asked.items),
    )


def check_each(root: Path, series: Series, tables: Sequence[Mapping[str, Any]]) -> Loaded:
    """The load check with each of the speculative configurations; the one that came least far."""
    return min(
        (check(root, series, table) for table in tables),
        key=lambda found: LEVELS.index(found.level),
    )


def _ask(root: Path, question: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """The answer of a process of its own, which leaves nothing behind; see `inside.answer`."""
    with tempfile.TemporaryDirectory(prefix="loadcheck-") as scratch:
        folder = Path(scratch)
        environment = process.environment(root, environ, folder)
        try:
            ended = process.ask(inside.__name__, question, environment, folder, TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return _nothing(f"it took longer than {TIMEOUT_S:g} s")
    return _nothing(ended.why) if ended.code or ended.said is None else ended.said


def _nothing(why: str) -> dict[str, Any]:
    return {"level": NOT_IMPORTED, "faults": [], "stopped_by": why, "read": []}
