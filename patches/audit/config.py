"""What vllm/config/speculative.py promises: options it refuses, methods with auxiliary states.

Shared code may read an attribute only when an option is set, and the configuration may refuse that
option for all but a few architectures. Such a read cannot be reached by the others.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from patches.audit.modules import Module, ModuleIndex
from patches.audit.platforms import PLATFORMS

_MODULE = "vllm.config.speculative"
_AUXILIARY_NAME = "uses_aux_hidden_states"  # SpeculativeConfig.compute_hash


@dataclass(frozen=True)
class OptionRule:
    """`option` is refused unless the draft is one of `architectures`; the raise is at `where`."""

    option: str
    architectures: frozenset[str]
    where: str


class SpeculativeRules:
    """The rules of one tree. Each is parsed when first asked for."""

    def __init__(self, index: ModuleIndex) -> None:
        self._index = index

    @cached_property
    def auxiliary_methods(self) -> frozenset[str] | None:
        """The methods whose speculator is given auxiliary hidden states; None when not stated."""
        for node in self._nodes():
            match node:
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.Compare(ops=[ast.In()], comparators=[ast.Tuple(elts=elements)]),
                ) if name == _AUXILIARY_NAME:
                    names = [e.value for e in elements if isinstance(e, ast.Constant)]
                    return frozenset(str(name) for name in names)
        return None

    def refusal(self, options: set[str], arch: str) -> OptionRule | None:
        """Return the rule that keeps `arch` from ever having one of `options` set."""
        for rule in self._option_rules:
            if rule.option in options and arch not in rule.architectures:
                return rule
        return None

    @cached_property
    def _option_rules(self) -> list[OptionRule]:
        module = self._index.get(_MODULE)
        if module is None:
            return []
        rules: list[OptionRule] = []
        for node in self._nodes():
            option = _tested_option(node)
            if option is not None and isinstance(node, ast.If):
                rules += _rules_below(module, node, option)
        return rules

    def _nodes(self) -> Iterator[ast.AST]:
        module = self._index.get(_MODULE)
        for node in module.body if module else []:
            yield from ast.walk(node)


def _tested_option(node: ast.AST) -> str | None:
    """The option in ``if option is not None:``."""
    match node:
        case ast.If(
            test=ast.Compare(
                left=ast.Name(id=name) | ast.Attribute(attr=name),
                ops=[ast.IsNot()],
                comparators=[ast.Constant(value=None)],
            )
        ):
            return name
    return None


def _rules_below(module: Module, node: ast.If, option: str) -> Iterator[OptionRule]:
    """Find ``if "Arch" not in ...architectures [and ...]: raise`` directly in the body."""
    for inner in node.body:
        if isinstance(inner, ast.If) and isinstance(inner.body[-1], ast.Raise):
            is_and = isinstance(inner.test, ast.BoolOp) and isinstance(inner.test.op, ast.And)
            tests = inner.test.values if isinstance(inner.test, ast.BoolOp) else [inner.test]
            names = [_required_architecture(module, test) for test in tests]
            if None not in names and (is_and or len(tests) == 1):
                allowed = frozenset(name for name in names if name is not None)
                yield OptionRule(option, allowed, module.where(inner))


def _required_architecture(module: Module, test: ast.expr) -> str | None:
    match test:
        case ast.Compare(
            left=left, ops=[ast.NotIn()], comparators=[ast.Attribute(attr="architectures")]
        ):
            if isinstance(left, ast.Name):
                found = module.resolve(left.id, PLATFORMS["nvidia"])
                left = found.node if found and isinstance(found.node, ast.expr) else left
            if isinstance(left, ast.Constant) and isinstance(left.value, str):
                return left.value
    return None
