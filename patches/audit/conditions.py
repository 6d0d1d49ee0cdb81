"""Conditions that reads stand under, and what is known of them for one draft class and method."""

import ast
from dataclasses import dataclass, field, replace
from typing import Protocol

from patches.audit.callshape import CallShape
from patches.audit.classes import UNKNOWN, ClassModel
from patches.audit.platforms import Platform, Truth, all_of, any_of, negated, truth

Role = str
"""Whose attribute is meant: ``draft`` or ``target``."""
AttributePath = tuple[str, ...]
"""Attribute names from the model down: ``("model", "confidence_head")``."""
DRAFT: Role = "draft"
TARGET: Role = "target"


class Facts(Protocol):
    """What is known when one architecture runs on one platform."""

    @property
    def platform(self) -> Platform:
        """The platform the code runs on."""

    def provides(self, role: Role, path: AttributePath) -> Truth:
        """Whether the model has the attribute."""

    def value_of(self, role: Role, path: AttributePath) -> object:
        """The constant that the attribute is, or `UNKNOWN`."""

    def is_instance(self, role: Role, path: AttributePath, cls: ClassModel) -> Truth:
        """Whether the object at `path` is an instance of `cls`."""

    def accepts(self, role: Role, path: AttributePath, call: CallShape) -> Truth:
        """Whether the model has the method and it can be called like that."""

    def method_in(self, methods: frozenset[str]) -> Truth:
        """Whether the speculative method in use is one of `methods`."""

    def flag(self, name: str) -> Truth:
        """Whether the speculator's own attribute `name` is truthy."""

    def flag_is_set(self, name: str) -> Truth:
        """Whether the speculator's own attribute `name` is something else than None."""

    def option(self, name: str) -> object:
        """The value of an option of the speculative configuration, or `UNKNOWN`."""

    def has_auxiliary_states(self) -> Truth:
        """Whether the target hands auxiliary hidden states to the speculator."""


@dataclass(frozen=True)
class Condition:
    """A condition in the source; on its own, one of which nothing can be told."""

    text: str

    def truth(self, facts: Facts) -> Truth:
        """Return whether it holds given `facts`; None when that cannot be told."""
        del facts
        return None


@dataclass(frozen=True)
class Constant(Condition):
    """``True``, ``0``, ``None``."""

    value: bool

    def truth(self, facts: Facts) -> Truth:
        del facts
        return self.value


@dataclass(frozen=True)
class Not(Condition):
    """The opposite of another condition."""

    inner: Condition

    def truth(self, facts: Facts) -> Truth:
        return negated(self.inner.truth(facts))


@dataclass(frozen=True)
class All(Condition):
    """All of several conditions."""

    parts: tuple[Condition, ...]

    def truth(self, facts: Facts) -> Truth:
        return all_of([part.truth(facts) for part in self.parts])


@dataclass(frozen=True)
class AnyOf(Condition):
    """At least one of several conditions."""

    parts: tuple[Condition, ...]

    def truth(self, facts: Facts) -> Truth:
        return any_of([part.truth(facts) for part in self.parts])


@dataclass(frozen=True)
class Provides(Condition):
    """``hasattr(model, name)``."""

    role: Role
    path: AttributePath

    def truth(self, facts: Facts) -> Truth:
        return facts.provides(self.role, self.path)


@dataclass(frozen=True)
class _OfValue(Condition):
    """A condition on an attribute's value that surely does not hold without the attribute."""

    role: Role
    path: AttributePath

    def truth(self, facts: Facts) -> Truth:
        if facts.provides(self.role, self.path) is False:
            return False
        value = facts.value_of(self.role, self.path)
        return None if value is UNKNOWN else self._holds(value)

    def _holds(self, value: object) -> bool:
        raise NotImplementedError


@dataclass(frozen=True)
class NotNone(_OfValue):
    """``getattr(model, name, None) is not None``."""

    def _holds(self, value: object) -> bool:
        return value is not None


@dataclass(frozen=True)
class Truthy(_OfValue):
    """The truth of an attribute that is read with a default that is false."""

    def _holds(self, value: object) -> bool:
        return bool(value)


@dataclass(frozen=True)
class Accepts(Condition):
    """A trial call of a model's method does not raise AttributeError or TypeError."""

    role: Role
    path: AttributePath
    call: CallShape

    def truth(self, facts: Facts) -> Truth:
        return facts.accepts(self.role, self.path, self.call)


@dataclass(frozen=True)
class IsInstance(Condition):
    """``isinstance(model, ...)``."""

    role: Role
    path: AttributePath
    classes: tuple[ClassModel, ...]

    def truth(self, facts: Facts) -> Truth:
        return any_of([facts.is_instance(self.role, self.path, cls) for cls in self.classes])


@dataclass(frozen=True)
class MethodIn(Condition):
    """The speculative method is one of `methods`."""

    methods: frozenset[str]

    def truth(self, facts: Facts) -> Truth:
        return facts.method_in(self.methods)


@dataclass(frozen=True)
class OnPlatform(Condition):
    """``current_platform.is_rocm()``."""

    test: ast.expr = field(compare=False)

    def truth(self, facts: Facts) -> Truth:
        return truth(self.test, facts.platform)


@dataclass(frozen=True)
class Flag(Condition):
    """An attribute of the speculator is truthy."""

    name: str

    def truth(self, facts: Facts) -> Truth:
        return facts.flag(self.name)


@dataclass(frozen=True)
class FlagIsSet(Condition):
    """An attribute of the speculator is not None."""

    name: str

    def truth(self, facts: Facts) -> Truth:
        return facts.flag_is_set(self.name)


@dataclass(frozen=True)
class Configured(Condition):
    """An option of the speculative configuration is truthy."""

    option: str

    def truth(self, facts: Facts) -> Truth:
        value = facts.option(self.option)
        return None if value is UNKNOWN else bool(value)


@dataclass(frozen=True)
class ConfiguredAs(Condition):
    """An option of the speculative configuration is one of `values`."""

    option: str
    values: frozenset[object]

    def truth(self, facts: Facts) -> Truth:
        value = facts.option(self.option)
        return None if value is UNKNOWN else any(value == stated for stated in self.values)


@dataclass(frozen=True)
class AuxiliaryStates(Condition):
    """The parameter ``aux_hidden_states`` is given."""

    def truth(self, facts: Facts) -> Truth:
        return facts.has_auxiliary_states()


def negate(condition: Condition) -> Condition:
    """Return the opposite of a condition, without stacking up negations."""
    if isinstance(condition, Not):
        return condition.inner
    return Not(f"not ({condition.text})", condition)


def parts_of(condition: Condition) -> tuple[Condition, ...]:
    """Take a condition apart into those that must all hold."""
    match condition:
        case All(parts=parts):
            return tuple(part for whole in parts for part in parts_of(whole))
        case Not(inner=AnyOf(parts=parts)):
            return tuple(part for whole in parts for part in parts_of(negate(whole)))
    return (condition,)


def replace_text(condition: Condition, text: str) -> Condition:
    """Return the same condition shown as `text`."""
    return replace(condition, text=text)
