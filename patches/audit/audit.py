"""One audit of one tree: which architectures are looked at, and what comes out."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from patches.audit.dropped import DroppedOptions
from patches.audit.gap import Gap, Severity
from patches.audit.gaps import GapFinder
from patches.audit.layouts import LayoutFinder
from patches.audit.modules import ModuleIndex
from patches.audit.parity import ParityFinder
from patches.audit.platforms import PLATFORMS
from patches.audit.registry import Entry, Registry
from patches.audit.tree import MisuseError, SourceTree

_ORDER = list(Severity)


@dataclass(frozen=True)
class Scope:
    """What to look at. Both given: the absolute check of that architecture on that platform.

    `speculative` is the server's speculative configuration: with it, conditions on its options are
    decided, and what they keep out of reach is at most a missing feature.
    """

    platform: str | None = None
    arch: str | None = None
    speculative: Mapping[str, object] | None = field(default=None, hash=False)

    @property
    def is_absolute(self) -> bool:
        """Whether one architecture must work on one platform, whatever the others provide."""
        return self.platform is not None and self.arch is not None


@dataclass(frozen=True)
class Report:
    """The gaps of one tree, worst first. `architectures` counts those that were compared."""

    tree: str
    version: str | None
    scope: Scope
    architectures: int
    gaps: tuple[Gap, ...]
    notes: tuple[str, ...] = ()

    def fails(self, gap: Gap) -> bool:
        """Whether a gap is one that the exit code reports."""
        unusable = gap.severity in (Severity.NO_CLASS, Severity.STUB, Severity.NOT_COMPARED)
        is_fault = gap.severity.is_crash or gap.severity is Severity.WRONG_ANSWERS
        return is_fault or (self.scope.is_absolute and unusable)


def audit(tree: SourceTree, scope: Scope) -> Report:
    """Audit a tree. Raises `MisuseError` for an architecture or platform that does not exist."""
    registry = Registry(ModuleIndex(tree))
    _check(scope, registry)
    finder, parity = GapFinder(registry, scope.speculative), ParityFinder(registry)
    dropped, layouts = DroppedOptions(registry), LayoutFinder(registry)
    forked = [e for e in registry.drafts.values() if registry.is_forked(e)]
    drafts = [registry.drafts[scope.arch]] if scope.arch in registry.drafts else forked
    targets = [e for e in registry.targets.values() if registry.is_forked(e)]
    if scope.arch is not None:
        drafts = [e for e in drafts if e.arch == scope.arch]
        targets = [e for e in targets if e.arch == scope.arch]

    notes = [
        f"{name} keeps a draft model, but the audit does not know whose: not audited"
        for name in finder.unaudited_speculators()
    ]
    if scope.platform is not None and scope.arch is not None:
        notes += [note for entry in drafts for note in _doubts(finder, entry, scope.platform)]

    gaps: list[Gap] = []
    for entry in drafts:
        gaps += finder.draft_gaps(entry, scope.platform if scope.is_absolute else None)
        gaps += _new(parity.gaps(entry), gaps)
    for entry in targets:
        siblings = [draft for draft in forked if draft.module == entry.module]
        gaps += finder.target_gaps(entry, siblings)
        gaps += _new(parity.gaps(entry), gaps)
    for entry in (*drafts, *targets):
        gaps += dropped.gaps(entry, scope.platform)
        gaps += layouts.gaps(entry, scope.platform)
    if scope.platform is not None:
        gaps = [gap for gap in gaps if gap.platform == scope.platform]
    gaps.sort(key=lambda gap: (_ORDER.index(gap.severity), gap.arch, gap.platform, gap.attribute))
    count = len(drafts) + len(targets)
    return Report(tree.label, tree.version, scope, count, tuple(gaps), tuple(notes))


def _doubts(finder: GapFinder, entry: Entry, platform: str) -> list[str]:
    """What the absolute check cannot tell. A check that would prove nothing is refused instead."""
    if not finder.is_driven(entry):
        raise MisuseError(
            f"--arch {entry.arch}: no speculator of this tree is known to drive it, so the check "
            "would prove nothing; leave --arch or --platform out"
        )
    reason = finder.undecidable(entry, platform)
    return [f"{entry.arch} on {platform} cannot be judged: {reason}"] if reason else []


def introduced(report: Report, old: Report) -> Report:
    """Keep the gaps of `report` that `old` does not have."""
    return without(report, frozenset(gap.key for gap in old.gaps))


def without(report: Report, known: frozenset[str]) -> Report:
    """Keep the gaps whose keys are not known."""
    return replace(report, gaps=tuple(gap for gap in report.gaps if gap.key not in known))


def _new(gaps: Iterable[Gap], known: list[Gap]) -> list[Gap]:
    """Leave out what the data flow has already found, and said more of."""
    said = {(gap.platform, gap.arch, gap.attribute) for gap in known}
    return [gap for gap in gaps if (gap.platform, gap.arch, gap.attribute) not in said]


def _check(scope: Scope, registry: Registry) -> None:
    if scope.platform is not None and scope.platform not in PLATFORMS:
        raise MisuseError(
            f"--platform {scope.platform}: unknown; use one of {', '.join(PLATFORMS)}"
        )
    forked: list[Entry] = [e for e in registry.targets.values() if registry.is_forked(e)]
    legal = [*registry.drafts, *(entry.arch for entry in forked)]
    if scope.arch is not None and scope.arch not in legal:
        close = difflib.get_close_matches(scope.arch, legal, n=3)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise MisuseError(
            f"--arch {scope.arch}: not in this tree's registry; {hint}"
            f"use one of {', '.join(sorted(legal))}"
        )
