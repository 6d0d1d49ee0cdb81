"""What the body of one class sets: its methods, its attributes, and those of its instances."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from patches.audit.modules import FunctionNode, Test
from patches.audit.platforms import Platform, truth

_REGISTERING_CALLS = frozenset(
    {"register_buffer", "register_parameter", "register_module", "add_module"}
)


@dataclass
class SelfAssignment:
    """A place in a method that sets an attribute of the instance."""

    method: str
    node: ast.stmt | ast.expr
    tests: tuple[Test, ...]
    value: ast.expr | None


class ClassBody:
    """What one class itself sets, as it is on one platform; its bases are not looked at."""

    def __init__(self, body: list[ast.stmt], platform: Platform) -> None:
        self._platform = platform
        self.methods: dict[str, FunctionNode] = {}
        self.class_attributes: dict[str, tuple[ast.stmt, ast.expr | None]] = {}
        self.assignments: dict[str, list[SelfAssignment]] = {}
        self.assigned_patterns: list[re.Pattern[str]] = []
        self.sets_unknown_names = False
        self._scan_body(body)

    def _scan_body(self, body: list[ast.stmt]) -> None:
        for node in body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self.methods[node.name] = node
                    self._scan_method(node)
                case ast.If():
                    holds = truth(node.test, self._platform)
                    self._scan_body(node.body if holds is not False else [])
                    self._scan_body(node.orelse if holds is not True else [])
                case ast.Assign(targets=targets, value=value):
                    for name in _target_names(targets):
                        self.class_attributes[name] = (node, value)
                case ast.AnnAssign(target=ast.Name(id=name), value=value):
                    if value is not None:  # a bare annotation creates no attribute
                        self.class_attributes[name] = (node, value)
                case ast.ClassDef(name=name):
                    self.class_attributes[name] = (node, None)

    def _scan_method(self, method: FunctionNode) -> None:
        parameters = [*method.args.posonlyargs, *method.args.args]
        if parameters:
            self._scan_statements(method, parameters[0].arg, method.body, ())

    def _scan_statements(
        self, method: FunctionNode, me: str, body: list[ast.stmt], tests: tuple[Test, ...]
    ) -> None:
        for node in body:
            if isinstance(node, ast.If):
                holds = truth(node.test, self._platform)
                if holds is not False:
                    self._scan_statements(method, me, node.body, (*tests, (node.test, True)))
                if holds is not True:
                    self._scan_statements(method, me, node.orelse, (*tests, (node.test, False)))
                continue
            for part in _nested_bodies(node):
                self._scan_statements(method, me, part, tests)
            for target, value in _assigned(node):
                attr = _self_attribute(target, me)
                if attr is not None:
                    self._note(attr, method.name, node, tests, value)
            if isinstance(node, ast.Expr):
                self._scan_call(method, me, node.value, tests)

    def _scan_call(
        self, method: FunctionNode, me: str, node: ast.expr, tests: tuple[Test, ...]
    ) -> None:
        """Note what ``self.register_buffer("x", ...)`` and ``setattr(self, "x", ...)`` provide."""
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=owner), attr=attr), args=[name, *_]
            ) if owner == me and attr in _REGISTERING_CALLS:
                self._note_computed(name, method.name, node, tests)
            case ast.Call(func=ast.Name(id="setattr"), args=[ast.Name(id=owner), name, value]) if (
                owner == me
            ):
                self._note_computed(name, method.name, node, tests, value)

    def _note_computed(
        self,
        name: ast.expr,
        method: str,
        node: ast.expr,
        tests: tuple[Test, ...],
        value: ast.expr | None = None,
    ) -> None:
        match name:
            case ast.Constant(value=str() as text):
                self._note(text, method, node, tests, value)
            case ast.JoinedStr(values=parts):
                pattern = "".join(
                    re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+"
                    for part in parts
                )
                self.assigned_patterns.append(re.compile(pattern))
            case _:
                self.sets_unknown_names = True

    def _note(
        self,
        name: str,
        method: str,
        node: ast.stmt | ast.expr,
        tests: tuple[Test, ...],
        value: ast.expr | None,
    ) -> None:
        assignment = SelfAssignment(method, node, tests, value)
        self.assignments.setdefault(name, []).append(assignment)


def _target_names(targets: list[ast.expr]) -> Iterator[str]:
    for target in targets:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                yield node.id


def _assigned(node: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield each plain target a statement assigns and the value, when it is the target's alone."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _unpacked(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value
        case ast.For(target=target) | ast.AsyncFor(target=target):
            yield from _unpacked(target, None)
        case ast.With(items=items) | ast.AsyncWith(items=items):
            for item in items:
                if item.optional_vars is not None:
                    yield from _unpacked(item.optional_vars, None)


def _unpacked(
    target: ast.expr, value: ast.expr | None
) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _unpacked(element, None)
    else:
        yield target, value


def _self_attribute(target: ast.expr, me: str) -> str | None:
    match target:
        case ast.Attribute(value=ast.Name(id=owner), attr=attr) if owner == me:
            return attr
    return None


def _nested_bodies(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    if isinstance(node, ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try):
        for name in ("body", "orelse", "finalbody"):
            yield getattr(node, name, [])
        for handler in getattr(node, "handlers", []):
            yield handler.body
    elif isinstance(node, ast.Match):
        for case in node.cases:
            yield case.body
