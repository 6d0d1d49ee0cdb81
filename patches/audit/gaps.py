"""Gaps: attributes that shared code reads and that the class of one platform does not have."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from patches.audit.classes import ClassModel
from patches.audit.conditions import DRAFT, TARGET, AttributePath, Role
from patches.audit.config import SpeculativeRules
from patches.audit.gap import Gap, Severity
from patches.audit.liveness import (
    LiveRead,
    LiveReads,
    Situation,
    SituationFacts,
    holder_of,
    provides,
)
from patches.audit.platforms import PLATFORMS
from patches.audit.readgraph import CALL, Kind, ReadGraph
from patches.audit.registry import Entry, Implementation, Registry
from patches.audit.settings import Settings
from patches.audit.speculators import Speculators, family_of


@dataclass(frozen=True)
class _Side:
    """One platform's part in a comparison."""

    implementation: Implementation
    live: LiveReads
    refused: tuple["_Refused", ...]

    @property
    def model(self) -> ClassModel:
        assert self.implementation.model is not None
        return self.implementation.model


@dataclass(frozen=True)
class _Refused:
    """A read that only an option reaches which the configuration refuses, or has otherwise."""

    live: LiveRead
    because: str


class GapFinder:
    """Finds the gaps of one tree."""

    def __init__(self, registry: Registry, speculative: Mapping[str, object] | None = None) -> None:
        self._registry = registry
        self._speculators = Speculators(registry)
        self._rules = SpeculativeRules(registry.index)
        self._settings = Settings(registry.index, speculative)

    def draft_gaps(self, entry: Entry, absolute_on: str | None = None) -> list[Gap]:
        """Return the gaps of a draft architecture.

        A gap is what one platform lacks and another provides. On the platform `absolute_on`, what
        no platform provides is a gap as well, and so is having no class at all.
        """
        implementations = self._implementations(entry, absolute_on)
        found = list(_without_class(entry, implementations, absolute_on))
        family = family_of(entry.arch)
        if family is None:
            return found
        for graph in self._speculators.of(family):
            sides = self._sides(entry, family.method, graph, DRAFT, implementations)
            found += _compare(entry, DRAFT, sides, absolute_on)
        return _unique(found)

    def target_gaps(self, entry: Entry, drafts: Iterable[Entry]) -> list[Gap]:
        """Return the gaps of a target model towards the speculators of its own package's drafts."""
        implementations = self._implementations(entry, None)
        found: list[Gap] = []
        families = {family for draft in drafts if (family := family_of(draft.arch)) is not None}
        for family in sorted(families, key=lambda item: item.architectures.pattern):
            for graph in self._speculators.of(family):
                sides = self._sides(entry, family.method, graph, TARGET, implementations)
                found += _compare(entry, TARGET, sides, None)
        return _unique(found)

    def draft_reads(self, entry: Entry, implementation: Implementation) -> list[LiveRead]:
        """Return what the speculators of a draft architecture read when it runs there."""
        family = family_of(entry.arch)
        if family is None:
            return []
        return [
            live
            for graph in self._speculators.of(family)
            for side in self._sides(entry, family.method, graph, DRAFT, [implementation])
            for live in side.live.reads
        ]

    def is_driven(self, entry: Entry) -> bool:
        """Whether this tree has a speculator that is known to drive the architecture."""
        family = family_of(entry.arch)
        return family is not None and any(graph.roots for graph in self._speculators.of(family))

    def undecidable(self, entry: Entry, platform: str) -> str | None:
        """Why nothing can be said to be missing from the class on `platform`; None if it can."""
        model = self._registry.implementation(entry, platform).model
        return model.opaque_because if model else None

    def unaudited_speculators(self) -> list[str]:
        """Speculators that the audit does not know how to assign to an architecture."""
        return self._speculators.known_to_no_family()

    def _implementations(self, entry: Entry, absolute_on: str | None) -> list[Implementation]:
        names = self._registry.platforms_of(entry)
        if absolute_on is not None and absolute_on not in names:
            names = [*names, absolute_on]
        return [self._registry.implementation(entry, name) for name in names]

    def _sides(
        self,
        entry: Entry,
        method: str,
        graph: ReadGraph,
        role: Role,
        implementations: list[Implementation],
    ) -> list[_Side]:
        sides = []
        for implementation in implementations:
            model = implementation.model
            if model is not None and model.stub_message is None:
                platform = PLATFORMS[implementation.platform]
                situation = Situation(entry.arch, platform, method, {role: model})
                sides.append(self._side(implementation, situation, graph))
        return sides

    def _side(
        self, implementation: Implementation, situation: Situation, graph: ReadGraph
    ) -> _Side:
        facts = SituationFacts(situation, graph, self._rules, self._settings)
        live = LiveReads(graph, facts)
        refused: list[_Refused] = []
        for option, because in sorted(facts.closed.items()):
            freed = SituationFacts(situation, graph, self._rules, self._settings, option)
            reached = {(r.read.role, r.read.path) for r in live.reads}
            refused += [
                _Refused(read, because)
                for read in LiveReads(graph, freed).reads
                if (read.read.role, read.read.path) not in reached
            ]
        return _Side(implementation, live, tuple(refused))


def _without_class(
    entry: Entry, implementations: list[Implementation], absolute_on: str | None
) -> Iterator[Gap]:
    working = tuple(
        i.platform for i in implementations if i.model is not None and not i.model.stub_message
    )
    for implementation in implementations:
        model = implementation.model
        if not working and implementation.platform != absolute_on:
            continue
        if model is None:
            yield _classless(entry, implementation, working)
        elif model.stub_message is not None:
            yield Gap(
                Severity.STUB, implementation.platform, entry.arch, model.qualified_name, "-", "-",
                model.where, "", working, f"its constructor raises {model.stub_message}",
                model.where,
            )  # fmt: skip


def _classless(entry: Entry, implementation: Implementation, working: tuple[str, ...]) -> Gap:
    where = entry.module.replace(".", "/") + "/__init__.py:1"
    return Gap(
        Severity.NO_CLASS, implementation.platform, entry.arch, entry.class_name, "-", "-",
        where, "", working, implementation.missing_because, where,
    )  # fmt: skip


def _compare(
    entry: Entry, role: Role, sides: list[_Side], absolute_on: str | None
) -> Iterator[Gap]:
    for side in sides:
        absolute = side.implementation.platform == absolute_on
        siblings = [other for other in sides if other is not side]
        yield from _missing(entry, role, side, siblings, absolute)
        yield from _mismatched(entry, role, side, siblings, absolute)
        yield from _partly_provided(entry, role, side, siblings)
        yield from _unresolved(entry, role, side)


def _missing(
    entry: Entry, role: Role, side: _Side, siblings: list[_Side], absolute: bool
) -> Iterator[Gap]:
    for path, reads in _by_path(side.live.reads, role).items():
        if provides(side.model, path) is not False or side.live.stored(role, path):
            continue
        providers = _providers(siblings, path)
        required = [live for live in reads if live.kind is Kind.REQUIRED]
        if required and (providers or absolute):
            yield _required_gap(entry, side, required[0], providers)
        elif providers and not required:
            yield _gap(
                Severity.FEATURE_MISSING, entry, side, reads[0], providers, "read if present"
            )
    for refused in side.refused:
        path = refused.live.read.path
        if (refused.live.read.role, refused.live.kind) == (role, Kind.REQUIRED) and provides(
            side.model, path
        ) is False:
            providers = _providers(siblings, path)
            if providers or absolute:
                yield _gap(
                    Severity.FEATURE_MISSING, entry, side, refused.live, providers, refused.because
                )


def _required_gap(entry: Entry, side: _Side, live: LiveRead, providers: tuple[str, ...]) -> Gap:
    validation = side.live.validation(live)
    if validation is not None:
        note = f"refused with a message at {validation.where}"
        return _gap(Severity.FEATURE_MISSING, entry, side, live, providers, note)
    severity = Severity.CRASH_CONDITIONAL if live.conditions else Severity.CRASH
    return _gap(severity, entry, side, live, providers, "")


def _mismatched(
    entry: Entry, role: Role, side: _Side, siblings: list[_Side], absolute: bool
) -> Iterator[Gap]:
    for path, reads in _by_path(side.live.reads, role).items():
        for live in reads:
            problem = _call_problem(side.model, live)
            if problem is None:
                continue
            providers = tuple(
                other.implementation.platform
                for other in siblings
                if provides(other.model, path) and _call_problem(other.model, live) is None
            )
            if providers or absolute:
                severity = Severity.CRASH_CONDITIONAL if live.conditions else Severity.CRASH
                yield _gap(severity, entry, side, live, providers, problem, suffix="()")
                break


def _partly_provided(entry: Entry, role: Role, side: _Side, siblings: list[_Side]) -> Iterator[Gap]:
    """Yield what is required and set under a condition here, but always on another platform."""
    for path, reads in _by_path(side.live.reads, role).items():
        condition = _provided_under(side, path)
        if condition and reads[0].kind is Kind.REQUIRED and not side.live.stored(role, path):
            providers = tuple(
                other.implementation.platform
                for other in siblings
                if provides(other.model, path) and _provided_under(other, path) is None
            )
            if providers:
                note = f"set {condition}"
                yield _gap(Severity.PARTLY_PROVIDED, entry, side, reads[0], providers, note)


def _provided_under(side: _Side, path: AttributePath) -> str | None:
    holder = holder_of(side.model, path)
    provision = holder.provision(path[-1]) if holder else None
    return provision.condition if provision else None


def _unresolved(entry: Entry, role: Role, side: _Side) -> Iterator[Gap]:
    for live in side.live.reads:
        if live.kind is Kind.UNRESOLVED and live.read.role == role:
            note = "the name cannot be told without running the code"
            yield _gap(Severity.UNRESOLVED, entry, side, live, (), note)


def _gap(
    severity: Severity,
    entry: Entry,
    side: _Side,
    live: LiveRead,
    providers: tuple[str, ...],
    note: str,
    suffix: str = "",
) -> Gap:
    return Gap(
        severity,
        side.implementation.platform,
        entry.arch,
        side.model.qualified_name,
        ".".join(live.read.path) + suffix,
        live.read.reader,
        live.read.where,
        " and ".join(condition.text for condition in live.conditions),
        providers,
        note,
        side.model.where,
        _explain(side.model, live),
    )


def _explain(model: ClassModel, live: LiveRead) -> tuple[str, ...]:
    lines = [f"way: {step}" for step in live.path]
    lines += [f"value: {step}" for step in live.read.origin]
    lines.append(f"read: {live.read.where}: {live.read.reader}() {_verb(live)}")
    lines += [f"holds: {c.text}" for c in live.read.conditions if c not in live.conditions]
    lines += [f"condition: {condition.text}" for condition in live.conditions]
    holder = holder_of(model, live.read.path)
    for cls in holder.mro if holder else []:
        lines.append(f"searched: {cls.qualified_name} ({cls.where})")
    if holder and holder.is_module:
        lines.append("searched: torch.nn.Module")
    return tuple(lines)


def _verb(live: LiveRead) -> str:
    name = live.read.path[-1]
    if live.read.call is not None:
        return "calls the model" if name == CALL else f"calls {name}()"
    return f"reads {name}" if live.kind is Kind.REQUIRED else f"asks for {name}"


def _by_path(reads: list[LiveRead], role: Role) -> dict[AttributePath, list[LiveRead]]:
    """Group reads by attribute, those under the fewest conditions first."""
    found: dict[AttributePath, list[LiveRead]] = {}
    for live in sorted(reads, key=lambda live: len(live.conditions)):
        if live.read.role == role and live.kind in (Kind.REQUIRED, Kind.OPTIONAL):
            found.setdefault(live.read.path, []).append(live)
    return found


def _providers(siblings: list[_Side], path: AttributePath) -> tuple[str, ...]:
    return tuple(side.implementation.platform for side in siblings if provides(side.model, path))


def _call_problem(model: ClassModel, live: LiveRead) -> str | None:
    holder = holder_of(model, live.read.path)
    if live.read.call is None or holder is None:
        return None
    return holder.call_problem(live.read.path[-1], live.read.call)


def _unique(gaps: list[Gap]) -> list[Gap]:
    """Keep the first of each; the same read may be found through several speculators."""
    found: dict[tuple[str, str], Gap] = {}
    for gap in gaps:
        found.setdefault((gap.key, gap.class_name), gap)
    return list(found.values())
