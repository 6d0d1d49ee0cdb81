"""The data flow of model reads: which attributes one speculator class reads off its models.

A speculator's methods are interpreted abstractly. The only values followed are references to the
draft or target model (and what hangs below them), the speculator itself, and constant strings;
everything else is unknown. Each function and binding of its arguments becomes one `Frame`; frames
are joined by `CallEdge`s, so that the condition a read stands under can be put together along the
way that leads to it.
"""

import ast

from patches.audit.classes import ClassLibrary, ClassModel
from patches.audit.conditions import DRAFT, TARGET, Condition, Constant
from patches.audit.modules import FunctionNode, Module
from patches.audit.readgraph import Frame, ReadGraph
from patches.audit.scope import MODEL_SLOT
from patches.audit.statements import Activation
from patches.audit.syntax import is_static, mentioned
from patches.audit.values import Models, Reference, SpeculatorSelf, Value

_TARGET_PARAMETERS = frozenset({"target_model"})
_ALWAYS_RUN = ("__init__", "load_model")  # in this order, before everything else
_MAX_DEPTH = 30  # calls; deeper is recursion


def read_graph(
    speculator: ClassModel, library: ClassLibrary, entry_points: frozenset[str]
) -> ReadGraph:
    """Interpret a speculator class; the runner calls those of `entry_points` that it has."""
    return _Interpreter(speculator, library, entry_points).run()


class _Interpreter:
    """Interprets the methods of one speculator class."""

    def __init__(
        self, speculator: ClassModel, library: ClassLibrary, entry_points: frozenset[str]
    ) -> None:
        self.speculator = speculator
        self.entry_points = entry_points - set(_ALWAYS_RUN)
        self.library = library
        self.frames: dict[tuple[object, ...], Frame] = {}
        self.attributes: dict[str, Models] = {}
        self.flags: dict[str, list[Condition]] = {}
        self.flag_sources: dict[str, set[str]] = {}
        self.probes: dict[str, list[Condition]] = {}
        self.depth = 0

    def run(self) -> ReadGraph:
        self._note_class_attributes()
        roots = []
        for name in (*_ALWAYS_RUN, *sorted(self.entry_points)):
            method = self.speculator.find_method(name)
            if method is not None:
                owner, function = method
                roots.append(self.enter_method(owner, function, self._entry_arguments(function)))
        return ReadGraph(self.speculator, roots, self.flags, self.flag_sources, self.probes)

    def enter_method(
        self, owner: ClassModel, function: FunctionNode, arguments: dict[str, Value]
    ) -> Frame:
        """Interpret a method of the speculator with some of its parameters bound."""
        if not is_static(function) and function.args.args:
            arguments = {function.args.args[0].arg: SpeculatorSelf(), **arguments}
        return self.enter(owner.module, function, arguments, owner)

    def enter(
        self,
        module: Module,
        function: FunctionNode,
        arguments: dict[str, Value],
        owner: ClassModel | None,
    ) -> Frame:
        """Interpret a function once for each binding of its parameters."""
        bound = tuple(sorted(arguments.items(), key=lambda item: item[0]))
        key = (id(function), owner.key if owner else None, bound)
        if key not in self.frames:
            name = f"{owner.name}.{function.name}" if owner else function.name
            frame = self.frames[key] = Frame(name)
            if self.depth < _MAX_DEPTH:
                self.depth += 1
                Activation(self, frame, module, owner, arguments).run(function)
                self.depth -= 1
        return self.frames[key]

    def draft_model(self, where: str) -> Models:
        """What ``self.model`` is: the draft model, with the history of how it got there."""
        start = Reference(DRAFT, (), origin=(f"{where}: self.model holds the draft model",))
        return self.attributes.get(MODEL_SLOT, Models((start,)))

    def note_flag(self, name: str, value: Condition, expression: ast.expr) -> None:
        """Remember what the speculator assigns to one of its own attributes."""
        self.flags.setdefault(name, []).append(value)
        self.flag_sources.setdefault(name, set()).update(mentioned(expression))

    def _note_class_attributes(self) -> None:
        for cls in reversed(self.speculator.mro):
            for name in cls.class_attribute_names():
                value = cls.class_values(name)[:1]
                if value and isinstance(value[0][1], ast.Constant):
                    constant = value[0][1]
                    self.note_flag(
                        name, Constant(ast.unparse(constant), bool(constant.value)), constant
                    )

    def _entry_arguments(self, function: FunctionNode) -> dict[str, Value]:
        names = [parameter.arg for parameter in function.args.args]
        origin = (f"{function.name}() is given the target model by the runner",)
        target = Models((Reference(TARGET, (), origin=origin),))
        return {name: target for name in names if name in _TARGET_PARAMETERS}
