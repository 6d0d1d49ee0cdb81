"""Everything that is asked of a tree of sources, and what of it a move has to deal with."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy import recipe
from deploy.recipe import release
from deploy.upstream import names, probes, wordings
from deploy.upstream.names import Names, NamesError
from deploy.upstream.probes import Seen
from deploy.upstream.wordings import Wordings
from deploy.versions import numbers
from patches import apply, faults, series
from patches.apply import PatchStatus
from patches.audit import render
from patches.audit.audit import Scope, audit
from patches.audit.tree import MisuseError, open_tree
from patches.errors import PatchesError, TreeError
from patches.faults import Fault
from patches.loadcheck import check, draft
from patches.loadcheck.check import Loaded
from patches.tree import find


@dataclass(frozen=True)
class Audit:
    """Gaps of the AMD draft class with the recipe's speculative tables: those that fail, others."""

    failing: tuple[str, ...]
    others: tuple[str, ...]


@dataclass(frozen=True)
class Survey:
    """What a vLLM's sources answered; a text stands for what could not be asked, and says why."""

    version: str
    is_known: bool
    statuses: tuple[PatchStatus, ...]
    faults: tuple[Fault, ...]
    audit: Audit | str
    load: Loaded | str
    names: Names | str
    facts: tuple[Seen, ...]
    wordings: Wordings | str

    def needs(self) -> tuple[str, ...]:
        """What is to be done before a move, one line each; none where nothing is known of."""
        lines = [] if self.is_known else [f"a folder deploy/releases/{self.version}"]
        for state, what in (("drifted", "does not fit"), ("missing", "has lost its file")):
            lines += [f"patch {p[:4]} {what}: read what became of it" for p in self._in(state)]
        pending = self._in("pending")
        lines += [f"the series is carried: {', '.join(p[:4] for p in pending)}"] if pending else []
        lines += [
            f"it is still wrong ({'refused' if f.refuses else 'warned of'} where a plan is hit): "
            f"{f.key}"
            for f in self.faults
            if f.patch not in pending
        ]
        if isinstance(self.audit, str):
            lines.append(f"the audit could not be made: {self.audit}")
        else:
            lines += [f"close the gap: {gap}" for gap in self.audit.failing]
        if isinstance(self.load, str):
            lines.append(f"the draft class cannot serve: {self.load}")
        elif self.load.stopped_by:
            lines.append(f"the draft was {self.load.level} here and no more: check it in the image")
        if isinstance(self.names, str):
            lines.append(f"names could not be asked: {self.names}")
        else:
            lines += [f"the recipe: {line}" for line in self.names.unknown]
        lines += [
            f"facts.toml: {_mend(seen, self.version)}" for seen in self.facts if not seen.agrees
        ]
        if isinstance(self.wordings, str):
            lines.append(f"wordings could not be compared: {self.wordings}")
        elif self.wordings.gone:
            lines.append(
                f"signatures.tsv: {len(self.wordings.gone)} of the wordings stood in "
                f"{self.wordings.earlier} and stand no more: see whether a new one is to be added"
            )
        return tuple(lines)

    def _in(self, state: str) -> tuple[str, ...]:
        """The patches of which a file is in this state."""
        return tuple(dict.fromkeys(s.patch for s in self.statuses if s.state == state))


def make(root: Path, installed: Path | None = None) -> Survey:
    """Ask all of the tree at `root`, the folder that holds ``vllm/``; takes about a minute.

    Wordings are compared with those of `installed`, else of the vLLM that this Python has. Raises
    TreeError for a folder without a vLLM that says its version, and what `apply.status` raises.
    """
    tree = find(root)
    version = tree.version
    if version is None:
        raise TreeError(f"{root}: its vLLM does not say its version: unpack the metadata too")
    root = tree.package.parent
    loaded = series.load()
    statuses = tuple(apply.status(root, loaded))
    return Survey(
        version=version,
        is_known=version in release.names(),
        statuses=statuses,
        faults=faults.left(version, statuses),
        audit=_audit(root),
        load=_load_check(root, loaded),
        names=_names(root, version),
        facts=probes.look(root, version),
        wordings=_wordings(root, installed),
    )


def base_of(version: str, known: Sequence[str]) -> str:
    """The newest of `known`, oldest first, that is older than `version`; else the newest."""
    older = [each for each in known if numbers(each) < numbers(version)]
    return (older or list(known))[-1]


def _audit(root: Path) -> Audit | str:
    failing: dict[str, None] = {}
    others: dict[str, None] = {}
    try:
        for table in recipe.load().drafts:
            found = audit(open_tree(root), Scope(check.PLATFORM, draft.ARCHITECTURE, table))
            for gap in found.gaps:
                (failing if found.fails(gap) else others)[render.sentence(gap)] = None
    except MisuseError as error:
        return str(error)
    return Audit(tuple(failing), tuple(others))


def _load_check(root: Path, loaded: series.Series) -> Loaded | str:
    try:
        return check.check_each(root, loaded, recipe.load().drafts)
    except (PatchesError, MisuseError) as error:
        return str(error)


def _names(root: Path, version: str) -> Names | str:
    known = release.names()
    try:
        return names.compare(root, release.load(base_of(version, known)))
    except NamesError as error:
        return str(error)


def _wordings(root: Path, installed: Path | None) -> Wordings | str:
    if installed is None:
        found = importlib.util.find_spec("vllm")
        if found is None or not found.submodule_search_locations:
            return "this Python has no vLLM to compare with: make environment"
        installed = Path(next(iter(found.submodule_search_locations))).parent
    return wordings.compare(root, installed, find(installed).version or "unknown")


def _mend(seen: Seen, version: str) -> str:
    """What the table would have to say."""
    if seen.seen is None:
        return f"{seen.key}: cannot be told: {seen.why}"
    if seen.seen:
        return f"{seen.key}: holds in {version}, and the table says it does not"
    return f"{seen.key}: holds no more in {version}: until"
