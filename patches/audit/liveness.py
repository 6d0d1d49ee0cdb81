"""Which reads a speculator reaches with one draft class, and under what conditions."""

import heapq
import itertools
from dataclasses import dataclass, field

from patches.audit.callshape import CallShape
from patches.audit.classes import UNKNOWN, ClassModel
from patches.audit.conditions import AttributePath, Condition, Role
from patches.audit.config import SpeculativeRules
from patches.audit.platforms import Platform, Truth, all_of, any_of
from patches.audit.readgraph import Frame, Kind, Read, ReadGraph, Validation
from patches.audit.settings import Settings


@dataclass(frozen=True)
class Situation:
    """One architecture on one platform under one speculative method."""

    arch: str
    platform: Platform
    method: str
    models: dict[Role, ClassModel] = field(hash=False)


def holder_of(model: ClassModel, path: AttributePath) -> ClassModel | None:
    """The class of the object that the last attribute of `path` is read from; None if unknown."""
    holder: ClassModel | None = model
    for name in path[:-1]:
        holder = holder.attribute_type(name) if holder else None
    return holder


def provides(model: ClassModel, path: AttributePath) -> Truth:
    """Whether instances of `model` have the attribute at `path`; None when it cannot be told."""
    for length in range(1, len(path) + 1):
        holder = holder_of(model, path[:length])
        if holder is None:
            return None
        if holder.provision(path[length - 1]) is None:
            return None if holder.opaque_because else False
    return True


class SituationFacts:
    """What is known in one `Situation` while one speculator runs (see `conditions.Facts`)."""

    def __init__(
        self,
        situation: Situation,
        graph: ReadGraph,
        rules: SpeculativeRules,
        settings: Settings,
        freed: str | None = None,
    ) -> None:
        self.platform = situation.platform
        self.closed: dict[str, str] = {}
        """The options that the configuration decides or refuses here, and why."""
        self._situation = situation
        self._graph = graph
        self._rules = rules
        self._settings = settings
        self._freed = freed
        self._open_flags: set[str] = set()
        self._known: dict[tuple[Role, AttributePath], Truth] = {}

    def provides(self, role: Role, path: AttributePath) -> Truth:
        """Whether the model has the attribute; None when the model is not part of this."""
        key = (role, path)
        if key not in self._known:
            model = self._situation.models.get(role)
            self._known[key] = provides(model, path) if model else None
        return self._known[key]

    def value_of(self, role: Role, path: AttributePath) -> object:
        """The constant that a class attribute is; `UNKNOWN` for anything else."""
        model = self._situation.models.get(role)
        if model is None or len(path) != 1:
            return UNKNOWN
        return model.constant(path[0])

    def is_instance(self, role: Role, path: AttributePath, cls: ClassModel) -> Truth:
        """Whether the object is an instance; a Protocol may also be met by structure alone."""
        model = self._situation.models.get(role)
        for name in path:
            model = model.attribute_type(name) if model else None
        if model is None:
            return None
        if cls.key in {base.key for base in model.mro}:
            return True
        is_protocol = any(base.endswith("Protocol") for base in cls.external_bases)
        return None if is_protocol or model.opaque_because else False

    def accepts(self, role: Role, path: AttributePath, call: CallShape) -> Truth:
        """Whether the model has the method and it can be called like that."""
        model = self._situation.models.get(role)
        there = self.provides(role, path)
        holder = holder_of(model, path) if model and there else None
        if holder is None:
            return False if there is False else None
        return False if holder.call_problem(path[-1], call) else None

    def method_in(self, methods: frozenset[str]) -> Truth:
        """Whether the speculative method in use is one of `methods`."""
        return self._situation.method in methods

    def flag(self, name: str) -> Truth:
        """Whether the speculator's attribute is truthy: what all assignments to it agree on."""
        if any(probe.truth(self) is False for probe in self._graph.probes.get(name, [])):
            return False
        assigned = self._graph.flags.get(name, [])
        if not assigned or name in self._open_flags:
            return None
        self._open_flags.add(name)
        values = [value.truth(self) for value in assigned]
        self._open_flags.discard(name)
        return True if all_of(values) else (False if any_of(values) is False else None)

    def flag_is_set(self, name: str) -> Truth:
        """Whether the attribute is not None; False when it comes from an option that is refused."""
        sources = self._graph.flag_sources.get(name, set()) - {self._freed}
        rule = self._rules.refusal(sources, self._situation.arch)
        if rule is None:
            return None
        self.closed[rule.option] = f"{rule.option} is refused for it at {rule.where}"
        return False

    def option(self, name: str) -> object:
        """The value of an option of the speculative configuration, or `UNKNOWN`."""
        value = UNKNOWN if name == self._freed else self._settings.value(name)
        if value is not UNKNOWN:
            self.closed[name] = self._settings.told(name)
        return value

    def has_auxiliary_states(self) -> Truth:
        """Whether the target hands auxiliary hidden states to the speculator."""
        methods = self._rules.auxiliary_methods
        if methods is None or self._situation.method in methods:
            return None
        return False


@dataclass(frozen=True)
class LiveRead:
    """A read that can be reached. `path` tells how: the calls from the runner's entry to it."""

    read: Read
    kind: Kind
    conditions: tuple[Condition, ...]
    """What must hold and is not known to."""
    path: tuple[str, ...]


@dataclass(frozen=True)
class _Arrival:
    conditions: tuple[Condition, ...]
    path: tuple[str, ...]
    soft: bool


class LiveReads:
    """The reads of one graph that can be reached in one situation."""

    def __init__(self, graph: ReadGraph, facts: SituationFacts) -> None:
        self._facts = facts
        self._arrivals = self._explore(graph)
        self.reads = [live for frame in self._arrivals for live in self._reads_in(frame)]
        self._validations = [v for frame in self._arrivals for v in self._validations_in(frame)]

    def stored(self, role: Role, path: AttributePath) -> bool:
        """Whether shared code itself sets the attribute."""
        return any(
            live.kind is Kind.STORED and (live.read.role, live.read.path) == (role, path)
            for live in self.reads
        )

    def validation(self, live: LiveRead) -> Validation | None:
        """Return the check that refuses a model without the attribute before the read is reached.

        It counts when it always runs, or when it stands under a condition of the read's own.
        """
        needed = {condition.text for condition in live.conditions}
        for found, open_conditions in self._validations:
            if (found.role, found.path) == (live.read.role, live.read.path):
                texts = {condition.text for condition in open_conditions}
                if not texts or texts & needed:
                    return found
        return None

    def _explore(self, graph: ReadGraph) -> dict[Frame, _Arrival]:
        """Find the way with the fewest open conditions to each frame that can be reached."""
        arrivals: dict[Frame, _Arrival] = {}
        order = itertools.count()  # frames cannot be compared; ties go to the first found
        waiting = [
            (
                0,
                next(order),
                frame,
                _Arrival((), (f"{frame.name}() is called by the runner",), False),
            )
            for frame in graph.roots
        ]
        heapq.heapify(waiting)
        while waiting:
            _, _, frame, arrival = heapq.heappop(waiting)
            if frame in arrivals:
                continue
            arrivals[frame] = arrival
            for edge in frame.calls:
                opened = self._open(edge.conditions)
                if opened is None or edge.frame in arrivals:
                    continue
                conditions = _joined(arrival.conditions, opened)
                step = f"{edge.where}: {frame.name}() calls {edge.frame.name}()"
                following = _Arrival(conditions, (*arrival.path, step), arrival.soft or edge.soft)
                heapq.heappush(waiting, (len(conditions), next(order), edge.frame, following))
        return arrivals

    def _reads_in(self, frame: Frame) -> list[LiveRead]:
        arrival = self._arrivals[frame]
        found = []
        for read in frame.reads:
            opened = self._open(read.conditions)
            if opened is not None:
                soft = arrival.soft and read.kind is Kind.REQUIRED
                found.append(
                    LiveRead(
                        read,
                        Kind.OPTIONAL if soft else read.kind,
                        _joined(arrival.conditions, opened),
                        arrival.path,
                    )
                )
        return found

    def _validations_in(self, frame: Frame) -> list[tuple[Validation, tuple[Condition, ...]]]:
        found = []
        for validation in frame.validations:
            opened = self._open(validation.conditions)
            if opened is not None:
                found.append((validation, _joined(self._arrivals[frame].conditions, opened)))
        return found

    def _open(self, conditions: tuple[Condition, ...]) -> tuple[Condition, ...] | None:
        """Drop the conditions that surely hold; None when one of them surely does not."""
        opened = []
        for condition in conditions:
            value = condition.truth(self._facts)
            if value is False:
                return None
            if value is None:
                opened.append(condition)
        return tuple(opened)


def _joined(left: tuple[Condition, ...], right: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """Put conditions together, each shown once."""
    return tuple({condition.text: condition for condition in (*left, *right)}.values())
