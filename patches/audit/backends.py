"""The backends of the routed experts: the classes that run them, and the calls those make.

A backend is a class below `BACKENDS`. Its ``apply`` runs functions of the same folder and ends in
ops, functions of the tree outside of it or kernels.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from patches.audit.availability import Availability
from patches.audit.calls import Bodies, CallResolver, Function, method_of
from patches.audit.classes import ClassModel
from patches.audit.modules import FUNCTIONS, FunctionNode, Module
from patches.audit.registry import Registry

BACKENDS = "vllm/model_executor/layers/fused_moe/experts"
ENTRY = "apply"
_RUNS_HERE, _TAKES_ACTIVATION = "_supports_current_device", "_supports_activation"
_STATED_BY_ALL = "activation_format"  # abstract in the common base: without it a class is a base


@dataclass(frozen=True)
class Step:
    """A function that a backend's ``apply`` runs, and the calls that lead to it."""

    function: Function
    way: tuple[str, ...] = field(compare=False)


class Backend:
    """A class that runs experts on one platform."""

    def __init__(self, backends: "Backends", platform: str, model: ClassModel) -> None:
        self.model = model
        self._backends = backends
        self._platform = platform

    def takes(self, activation: str | None) -> bool:
        """Whether it surely runs experts with `activation`; None stands for one that is unknown."""
        return self._activations is None or activation in self._activations

    @cached_property
    def _activations(self) -> frozenset[str] | None:
        found = method_of(self.model, _TAKES_ACTIVATION)
        return _activations(found.node) if found else None

    def reads(self, names: frozenset[str]) -> bool:
        """Whether its own methods or a function they lead to mention one of `names`."""
        own = (
            self._backends.bodies.of(cls.module, method)
            for cls in self.model.mro
            if cls.module.path.startswith(BACKENDS)
            for method in cls.methods.values()
        )
        if any(body.names & names for body in own):
            return True
        run = (self._backends.bodies.of(s.function.module, s.function.node) for s in self.steps)
        return any(body.names & names for body in run)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The functions of the backends' code that its ``apply`` runs, itself first."""
        entry = method_of(self.model, ENTRY)
        assert entry is not None
        seen: dict[int, Step] = {}
        waiting = [Step(entry, (f"{entry.where}: {entry.name}() runs the experts",))]
        while waiting:
            step = waiting.pop(0)
            if id(step.function.node) in seen:
                continue
            seen[id(step.function.node)] = step
            for call, target in self._backends.calls_in(self._platform, step.function):
                if target.module.path.startswith(BACKENDS):
                    where = step.function.module.where(call)
                    line = f"{where}: {step.function.name}() calls {target.name}()"
                    waiting.append(Step(target, (*step.way, line)))
        return tuple(seen.values())


class Backends:
    """The backends of one tree."""

    def __init__(self, registry: Registry) -> None:
        self.bodies = Bodies()
        self._registry = registry
        self._on: dict[str, list[Backend]] = {}
        self._calls: dict[tuple[str, int, ClassModel | None], list[tuple[ast.Call, Function]]] = {}

    def on(self, platform: str) -> list[Backend]:
        """The backends that may run on a platform."""
        if platform not in self._on:
            self._on[platform] = list(self._available(platform))
        return self._on[platform]

    def calls_in(self, platform: str, function: Function) -> list[tuple[ast.Call, Function]]:
        """The calls in a function whose own function is one of the tree's."""
        key = (platform, id(function.node), function.instance)
        if key not in self._calls:
            library = self._registry.library(platform)
            body = self.bodies.of(function.module, function.node)
            self._calls[key] = list(CallResolver(library, function, body).calls())
        return self._calls[key]

    @cached_property
    def all_calls(self) -> list[ast.Call]:
        """Every call in the backends' code, on whichever platform."""
        return [
            call
            for module in self._modules
            for function in _functions(module)
            for call in self.bodies.of(module, function).calls
        ]

    @cached_property
    def _modules(self) -> list[Module]:
        index = self._registry.index
        return [index.at(path) for path in index.tree.python_files(BACKENDS)]

    def _available(self, platform: str) -> Iterator[Backend]:
        library = self._registry.library(platform)
        availability = Availability(library, self.bodies)
        for module in self._modules:
            for node in module.classes():
                model = library.model(module, node)
                runs, stated = method_of(model, _RUNS_HERE), method_of(model, _STATED_BY_ALL)
                is_complete = stated is not None and stated.module.path.startswith(BACKENDS)
                if is_complete and method_of(model, ENTRY) and runs and availability.may_hold(runs):
                    yield Backend(self, platform, model)


def _functions(module: Module) -> Iterator[FunctionNode]:
    for body in (module.body, *(cls.body for cls in module.classes())):
        for node in body:
            if isinstance(node, FUNCTIONS):
                yield node


def _activations(function: FunctionNode) -> frozenset[str] | None:
    """The activations a backend says it takes, lower case; None when it tells by another rule.

    Source: the members of ``MoEActivation``, whose values are their names in lower case.
    """
    taken: set[str] = set()
    for node in ast.walk(function):
        match node:
            case ast.Compare(ops=[ast.NotEq() | ast.NotIn()]) | ast.Not():
                return None
            case ast.Attribute(value=ast.Name(id="MoEActivation"), attr=attr):
                taken.add(attr.lower())
    return frozenset(taken) or None
