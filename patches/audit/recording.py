"""What one function body is known to do: its reads, its calls, and the conditions of both."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from patches.audit.callshape import CallShape
from patches.audit.classes import ClassModel
from patches.audit.conditions import Condition, Not, NotNone, Provides, parts_of
from patches.audit.modules import FunctionNode, Module
from patches.audit.readgraph import CallEdge, Frame, Kind, Read, Validation
from patches.audit.scope import Scope, SpeculatorState
from patches.audit.syntax import short
from patches.audit.values import Models, Value

_CONTRACT = ((), ("model",))
"""Whose attributes are audited: the model's and those of its ``model``. What hangs deeper (an
embedding's weight, a field of a config) belongs to classes that all platforms share."""


class Interpreter(SpeculatorState, Protocol):
    """Interprets the functions that a body calls, and keeps what is known of the speculator."""

    probes: dict[str, list[Condition]]

    def enter_method(
        self, owner: ClassModel, function: FunctionNode, arguments: dict[str, Value]
    ) -> Frame:
        """Interpret a method of the speculator with some of its parameters bound."""

    def enter(
        self,
        module: Module,
        function: FunctionNode,
        arguments: dict[str, Value],
        owner: ClassModel | None,
    ) -> Frame:
        """Interpret a function once for each binding of its parameters."""

    def note_flag(self, name: str, value: Condition, expression: ast.expr) -> None:
        """Remember what the speculator assigns to one of its own attributes."""


class Recorder(Scope):
    """One activation of a function, and the frame that it fills."""

    def __init__(
        self,
        interpreter: Interpreter,
        frame: Frame,
        module: Module,
        owner: ClassModel | None,
        arguments: dict[str, Value],
    ) -> None:
        super().__init__(interpreter, module, arguments)
        self._interpreter = interpreter
        self._frame = frame
        self._owner = owner
        self._conditions: list[Condition] = []
        self._soft = 0

    def _read(self, owner: Value, attr: str, node: ast.expr) -> Value:
        if not isinstance(owner, Models):
            return None
        self._record(owner, attr, Kind.REQUIRED, node)
        return Models(tuple(reference.attribute(attr) for reference in owner.references))

    def _record(
        self, owner: Value, attr: str, kind: Kind, node: ast.expr, call: CallShape | None = None
    ) -> None:
        if not isinstance(owner, Models):
            return
        if self._soft and kind is Kind.REQUIRED:
            kind = Kind.OPTIONAL
        for reference in owner.references:
            if reference.path not in _CONTRACT:
                continue
            self._frame.reads.append(
                Read(
                    reference.role,
                    (*reference.path, attr),
                    kind,
                    self._module.where(node),
                    self._frame.name,
                    (*self._conditions, *reference.when),
                    reference.origin,
                    call,
                )
            )

    def _called(self, frame: Frame, node: ast.expr) -> Value:
        where = self._module.where(node)
        self._frame.calls.append(CallEdge(frame, tuple(self._conditions), where, bool(self._soft)))
        return frame.returns

    def _note_validations(self, node: ast.Raise) -> None:
        for position, condition in enumerate(self._conditions):
            missing = condition.inner if isinstance(condition, Not) else None
            if isinstance(missing, Provides | NotNone):
                others = tuple(self._conditions[:position] + self._conditions[position + 1 :])
                where = self._module.where(node)
                self._frame.validations.append(
                    Validation(missing.role, missing.path, where, others)
                )

    @contextmanager
    def _under(self, condition: Condition) -> Iterator[None]:
        depth = len(self._conditions)
        self._conditions += parts_of(condition)
        yield
        del self._conditions[depth:]

    def _step(self, target: ast.expr, expression: ast.expr) -> str:
        return f"{self._module.where(target)}: {ast.unparse(target)} = {short(expression)}"
