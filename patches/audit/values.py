"""The values the data flow follows; everything else is None, unknown."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from patches.audit.conditions import AttributePath, Condition, Role, negate, parts_of

_MAX_STEPS = 10  # of a reference's history, for --explain


@dataclass(frozen=True)
class Reference:
    """A model, or something below it. `when`: the conditions under which it is that."""

    role: Role
    path: AttributePath
    when: tuple[Condition, ...] = ()
    may_be_none: bool = False
    origin: tuple[str, ...] = field(default=(), compare=False)

    def attribute(self, name: str, may_be_none: bool = False) -> "Reference":
        """Return the reference to an attribute of this object."""
        return replace(self, path=(*self.path, name), may_be_none=may_be_none)

    def after(self, step: str) -> "Reference":
        """Return this reference with one more step in its history."""
        return replace(self, origin=(*self.origin, step)[-_MAX_STEPS:])


@dataclass(frozen=True)
class Models:
    """A value that is one of these references."""

    references: tuple[Reference, ...]

    def after(self, step: str) -> "Models":
        """Return this value with one more step in the history of each reference."""
        return Models(tuple(reference.after(step) for reference in self.references))


@dataclass(frozen=True)
class SpeculatorSelf:
    """The speculator object itself."""


@dataclass(frozen=True)
class Strings:
    """A value that is one of these constant strings."""

    values: tuple[str, ...]


Value = Models | SpeculatorSelf | Strings | None


def union(left: Value, right: Value) -> Value:
    """Either of two values; what is unknown adds nothing."""
    if isinstance(left, Models) and isinstance(right, Models):
        return Models(tuple(dict.fromkeys((*left.references, *right.references))))
    if isinstance(left, Strings) and isinstance(right, Strings):
        return Strings(tuple(dict.fromkeys((*left.values, *right.values))))
    return left if left is not None else right


def choice(left: Value, right: Value, condition: Condition) -> Value:
    """The value of ``left if condition else right``."""
    if left == right:
        return left
    return union(_conditional(left, condition), _conditional(right, negate(condition)))


def _conditional(value: Value, condition: Condition) -> Value:
    if not isinstance(value, Models):
        return value
    return Models(tuple(replace(r, when=(*r.when, *parts_of(condition))) for r in value.references))


def merged(
    left: Mapping[str, Value], right: Mapping[str, Value], condition: Condition
) -> dict[str, Value]:
    """The variables after an if statement of which both branches went on."""
    names = {**left, **right}
    return {name: choice(left.get(name), right.get(name), condition) for name in names}


def stepped(value: Value, step: str) -> Value:
    """Add a step to a value's history, if it has one."""
    return value.after(step) if isinstance(value, Models) else value


def strings_of(node: ast.expr | None) -> Value:
    """The constant strings an expression is: one, or a tuple, list or set of them."""
    match node:
        case ast.Constant(value=str() as text):
            return Strings((text,))
        case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
            texts = [e.value for e in elements if isinstance(e, ast.Constant)]
            strings = [text for text in texts if isinstance(text, str)]
            return Strings(tuple(strings)) if len(strings) == len(elements) > 0 else None
    return None


def literal_names(node: ast.expr) -> frozenset[str] | None:
    """The strings written out in an expression; None when it is anything else."""
    value = strings_of(node)
    return frozenset(value.values) if isinstance(value, Strings) else None
