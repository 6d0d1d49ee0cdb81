"""The names visible in a function body, and what tests of them mean."""

import ast
from dataclasses import replace
from typing import Protocol

from patches.audit.classes import ClassLibrary, ClassModel, is_docstring
from patches.audit.conditions import (
    All,
    AnyOf,
    AuxiliaryStates,
    Condition,
    Configured,
    ConfiguredAs,
    Constant,
    Flag,
    FlagIsSet,
    IsInstance,
    MethodIn,
    Not,
    NotNone,
    OnPlatform,
    Provides,
    Truthy,
    negate,
    replace_text,
)
from patches.audit.modules import FUNCTIONS, Import, Module
from patches.audit.settings import HOLDER
from patches.audit.syntax import bind, last_name, short
from patches.audit.values import (
    Models,
    Reference,
    SpeculatorSelf,
    Strings,
    Value,
    literal_names,
    strings_of,
)

MODEL_SLOT = "model"
"""Every speculator and proposer keeps its draft model in ``self.model``."""
_AUXILIARY_PARAMETER = "aux_hidden_states"


class SpeculatorState(Protocol):
    """What is known of the speculator object while its methods are interpreted."""

    speculator: ClassModel
    library: ClassLibrary
    attributes: dict[str, Models]

    def draft_model(self, where: str) -> Models:
        """What ``self.model`` is at `where`."""


class Scope:
    """The variables of one function activation, without any effect of evaluating them."""

    def __init__(self, state: SpeculatorState, module: Module, arguments: dict[str, Value]) -> None:
        self._state = state
        self._module = module
        self._platform = state.library.platform
        self._values: dict[str, Value] = dict(arguments)
        self._tests: dict[str, Condition] = {}
        self._imports: dict[str, Import] = {}

    def condition(self, test: ast.expr) -> Condition:
        """Translate a test without recording the reads in it."""
        text = short(test, 120)
        match test:
            case ast.Constant(value=value):
                return Constant(text, bool(value))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return negate(self.condition(operand))
            case ast.BoolOp(op=ast.And(), values=values):
                return All(text, tuple(self.condition(value) for value in values))
            case ast.BoolOp(op=ast.Or(), values=values):
                return AnyOf(text, tuple(self.condition(value) for value in values))
            case ast.Call(func=ast.Name(id="bool"), args=[value]):
                return self.condition(value)
            case ast.Call():
                return self._call_condition(test, text)
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                return self._comparison(left, operator, right, text)
            case ast.Name(id=name):
                return self._name_condition(name, text)
            case ast.Attribute(value=owner, attr=attr):
                if last_name(owner) == HOLDER:
                    return Configured(text, attr)
                holder = self.quietly(owner)
                if isinstance(holder, SpeculatorSelf):
                    return Flag(text, attr)
                if isinstance(holder, Models) and len(holder.references) == 1:
                    reference = holder.references[0].attribute(attr)
                    return Truthy(text, reference.role, reference.path)
        return OnPlatform(text, test) if "current_platform" in text else Condition(text)

    def _name_condition(self, name: str, text: str) -> Condition:
        value = self._values.get(name)
        if isinstance(value, Models) and all(r.may_be_none for r in value.references):
            parts = tuple(NotNone(text, r.role, r.path) for r in value.references)
            return parts[0] if len(parts) == 1 else AnyOf(text, parts)
        if name == _AUXILIARY_PARAMETER and name not in self._tests:
            return AuxiliaryStates(text)
        known = self._tests.get(name)
        return replace(known, text=text) if known is not None else Condition(text)

    def _comparison(
        self, left: ast.expr, operator: ast.cmpop, right: ast.expr, text: str
    ) -> Condition:
        if isinstance(right, ast.Constant) and right.value is None:
            is_set = self._is_set(left, text)
            return is_set if isinstance(operator, ast.IsNot) else replace_text(negate(is_set), text)
        if isinstance(left, ast.Attribute) and left.attr == "method":
            names = literal_names(right)
            if names is not None and isinstance(operator, ast.Eq | ast.In):
                return MethodIn(text, names)
            if names is not None and isinstance(operator, ast.NotEq | ast.NotIn):
                return Not(text, MethodIn(text, names))
        if "current_platform" in text:
            return OnPlatform(text, ast.Compare(left, [operator], [right]))
        if isinstance(left, ast.Attribute) and last_name(left.value) == HOLDER:
            return _configured_as(text, left.attr, operator, right)
        return Condition(text)

    def _is_set(self, node: ast.expr, text: str) -> Condition:
        """Translate ``node is not None``."""
        match node:
            case ast.Name(id=name):
                value = self._values.get(name)
                if isinstance(value, Models) and all(r.may_be_none for r in value.references):
                    return self._name_condition(name, text)
                if name == _AUXILIARY_PARAMETER:
                    return AuxiliaryStates(text)
            case ast.Attribute(value=owner, attr=attr):
                if last_name(owner) == HOLDER:
                    return Not(text, ConfiguredAs(text, attr, frozenset((None,))))
                holder = self.quietly(owner)
                if isinstance(holder, SpeculatorSelf) and attr != MODEL_SLOT:
                    return FlagIsSet(text, attr)
            case ast.Call(func=ast.Name(id="getattr"), args=[*_, ast.Constant(value=None)]):
                asked = self.condition(node)
                if isinstance(asked, Truthy):
                    return NotNone(text, asked.role, asked.path)
        return Condition(text)

    def _call_condition(self, node: ast.Call, text: str) -> Condition:
        match node:
            case ast.Call(
                func=ast.Name(id="hasattr" | "getattr" as builtin), args=[owner, name, *_]
            ):
                model, names = self.quietly(owner), self.quietly(name)
                if (
                    isinstance(model, Models)
                    and isinstance(names, Strings)
                    and len(model.references) == len(names.values) == 1
                ):
                    reference = model.references[0].attribute(names.values[0])
                    return _asked(text, reference, builtin, node.args[2:])
            case ast.Call(func=ast.Name(id="callable"), args=[value]):
                return replace_text(self.condition(value), text)
            case ast.Call(func=ast.Name(id="isinstance"), args=[owner, classes]):
                return self._isinstance(owner, classes, text)
            case ast.Call(func=ast.Name() | ast.Attribute()) if "current_platform" not in text:
                return self._predicate(node, text)
        return OnPlatform(text, node) if "current_platform" in text else Condition(text)

    def _isinstance(self, owner: ast.expr, classes: ast.expr, text: str) -> Condition:
        model = self.quietly(owner)
        if not isinstance(model, Models) or len(model.references) != 1:
            return Condition(text)
        nodes = classes.elts if isinstance(classes, ast.Tuple) else [classes]
        found = []
        for node in nodes:
            target = self._module.resolve_expression(node, self._platform, self._imports)
            if target is None or not isinstance(target.node, ast.ClassDef):
                return Condition(text)
            found.append(self._state.library.model(target.module, target.node))
        reference = model.references[0]
        return IsInstance(text, reference.role, reference.path, tuple(found))

    def _predicate(self, node: ast.Call, text: str) -> Condition:
        """Look into a function that is one return statement, such as ``supports_eagle3(model)``."""
        values = [self.quietly(argument) for argument in node.args]
        if not any(isinstance(value, Models) for value in values):
            return Condition(text)
        found = self._module.resolve_expression(node.func, self._platform, self._imports)
        if found is None or not isinstance(found.node, FUNCTIONS):
            return Condition(text)
        body = [statement for statement in found.node.body if not is_docstring(statement)]
        if not (len(body) == 1 and isinstance(body[0], ast.Return) and body[0].value is not None):
            return Condition(text)
        inner = Scope(self._state, found.module, bind(found.node, values, {}, 0))
        return replace_text(inner.condition(body[0].value), text)

    def quietly(self, node: ast.expr) -> Value:
        """Evaluate an expression without recording anything: only names and attributes."""
        match node:
            case ast.Name(id=name):
                return self._named(name)
            case ast.Constant(value=str() as text):
                return Strings((text,))
            case ast.Attribute(value=owner, attr=attr):
                holder = self.quietly(owner)
                if isinstance(holder, Models):
                    return Models(tuple(r.attribute(attr) for r in holder.references))
                if isinstance(holder, SpeculatorSelf):
                    return self._kept_model(node, attr)
        return None

    def _named(self, name: str) -> Value:
        """What a name stands for: a variable, or a constant of the module."""
        if name in self._values:
            return self._values[name]
        return strings_of(self._module.own_expression(name))

    def _kept_model(self, node: ast.Attribute, attr: str) -> Models | None:
        """A model that the speculator keeps in one of its attributes."""
        if attr == MODEL_SLOT:
            return self._state.draft_model(self._module.where(node))
        return self._state.attributes.get(attr)


def _configured_as(text: str, option: str, operator: ast.cmpop, right: ast.expr) -> Condition:
    """Translate ``speculative_config.option == value``, ``... in (value, value)`` and opposites."""
    names = literal_names(right)
    values: frozenset[object] | None = names
    if isinstance(right, ast.Constant):
        values = frozenset((right.value,))
    if values is None or not isinstance(operator, ast.Eq | ast.In | ast.NotEq | ast.NotIn):
        return Condition(text)
    stated = ConfiguredAs(text, option, values)
    return stated if isinstance(operator, ast.Eq | ast.In) else Not(text, stated)


def _asked(text: str, reference: Reference, builtin: str, default: list[ast.expr]) -> Condition:
    """Translate ``hasattr(model, name)`` or the truth of ``getattr(model, name, default)``."""
    if builtin == "hasattr":
        return Provides(text, reference.role, reference.path)
    if default and not (isinstance(default[0], ast.Constant) and not default[0].value):
        return Condition(text)
    return Truthy(text, reference.role, reference.path)
