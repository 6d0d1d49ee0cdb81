"""How a Triton kernel lays a paged cache out: row by row in a page, or in tiles.

A kernel finds a page by dividing a position by the page's size. One that goes row by row divides
positions by nothing else on the way to an address of the cache; one that tiles a page divides the
place in the page again, by the sides of a tile. Which branches run is decided by the constants the
kernel is launched with.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from patches.audit.calls import Bodies, CallResolver, Function
from patches.audit.classes import UNKNOWN, ClassLibrary
from patches.audit.constants import compared
from patches.audit.platforms import Truth

_LANGUAGE = ("tl", "triton")
_MAX_DEPTH = 4  # helpers of helpers


class Layout(Enum):
    """How the rows of a page lie in it."""

    ROWS = "row by row"
    TILES = "in tiles"


@dataclass(frozen=True)
class Accesses:
    """The layouts by which a kernel loads from a cache and stores to it; None where it does not."""

    loads: Layout | None
    stores: Layout | None


@dataclass(frozen=True)
class _Value:
    """A value in a kernel: the cache parameters and the divisors of positions it is made of."""

    caches: frozenset[str] = frozenset()
    divisors: frozenset[str] = frozenset()
    is_position: bool = False
    constant: object = UNKNOWN

    def joined(self, other: "_Value") -> "_Value":
        """Either of two values, or something made of both."""
        same = self.constant is not UNKNOWN and self.constant == other.constant
        return _Value(
            self.caches | other.caches,
            self.divisors | other.divisors,
            self.is_position or other.is_position,
            self.constant if same else UNKNOWN,
        )


_POSITION = _Value(is_position=True)


def accesses(
    library: ClassLibrary,
    bodies: Bodies,
    kernel: Function,
    caches: frozenset[str],
    constants: Mapping[str, object],
) -> Accesses:
    """Read a kernel that is launched with `constants`; `caches` are its pointers to the cache."""
    run = _Kernel(library, bodies)
    values = {name: _Value(constant=value) for name, value in constants.items()}
    values.update({name: _Value(frozenset((name,))) for name in caches})
    run.function(kernel, values, 0)
    return Accesses(_layout(run.loaded), _layout(run.stored))


def _layout(addresses: list[_Value]) -> Layout | None:
    if not addresses:
        return None
    is_tiled = any(len(address.divisors) > 1 for address in addresses)
    return Layout.TILES if is_tiled else Layout.ROWS


class _Kernel:
    """One run of a kernel and its helpers; collects the addresses in the cache."""

    def __init__(self, library: ClassLibrary, bodies: Bodies) -> None:
        self.loaded: list[_Value] = []
        self.stored: list[_Value] = []
        self._library = library
        self._bodies = bodies

    def function(self, function: Function, values: dict[str, _Value], depth: int) -> _Value:
        body = self._bodies.of(function.module, function.node)
        resolver = CallResolver(self._library, function, body)
        return _Frame(self, resolver, values, depth).run(function.node.body)

    def note(self, addresses: list[_Value], address: _Value) -> None:
        if address.caches:
            addresses.append(address)


class _Frame:
    """The variables of one function of a kernel."""

    def __init__(
        self, kernel: _Kernel, resolver: CallResolver, values: dict[str, _Value], depth: int
    ) -> None:
        self._kernel = kernel
        self._resolver = resolver
        self._values = values
        self._depth = depth
        self._returned = _Value()

    def run(self, body: list[ast.stmt]) -> _Value:
        self._block(body)
        return self._returned

    def _block(self, body: list[ast.stmt]) -> None:
        for node in body:
            match node:
                case ast.Assign(targets=[target], value=value):
                    self._assign(target, value)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._assign(target, value)
                case ast.AugAssign(target=ast.Name(id=name) as target, op=operator, value=value):
                    self._values[name] = self._value(ast.BinOp(target, operator, value))
                case ast.If(test=test):
                    self._if(node, self._truth(test))
                case ast.For(target=target, iter=iterated):
                    self._value(iterated)
                    self._bind(target, _POSITION)
                    self._block(node.body)
                case ast.While() | ast.With():
                    self._block(node.body)
                case ast.Return(value=ast.expr() as value):
                    self._returned = self._returned.joined(self._value(value))
                case ast.Expr(value=value):
                    self._value(value)

    def _if(self, node: ast.If, holds: Truth) -> None:
        if holds is not None:
            self._block(node.body if holds else node.orelse)
            return
        before = dict(self._values)
        self._block(node.body)
        after, self._values = self._values, before
        self._block(node.orelse)
        for name, value in after.items():
            other = self._values.get(name)
            self._values[name] = value.joined(other) if other is not None else value

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for part, given in zip(target.elts, value.elts, strict=False):
                self._assign(part, given)
        else:
            self._bind(target, self._value(value))

    def _bind(self, target: ast.expr, value: _Value) -> None:
        if isinstance(target, ast.Name):
            self._values[target.id] = value
        elif isinstance(target, ast.Tuple):
            for part in target.elts:
                self._bind(part, replace(value, constant=UNKNOWN))

    def _truth(self, test: ast.expr) -> Truth:
        constant = self._value(test).constant
        return None if constant is UNKNOWN else bool(constant)

    def _value(self, node: ast.expr) -> _Value:
        match node:
            case ast.Constant(value=constant):
                return _Value(constant=constant)
            case ast.Name(id=name):
                return self._values.get(name, _Value())
            case ast.BinOp(left=left, op=ast.FloorDiv() | ast.Mod(), right=right):
                divided = self._value(left)
                named = frozenset((ast.unparse(right),)) if divided.is_position else frozenset()
                joined = divided.joined(self._value(right))
                return replace(joined, divisors=joined.divisors | named, constant=UNKNOWN)
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                first, second = self._value(left), self._value(right)
                known = compared(first.constant, operator, second.constant)
                return replace(first.joined(second), constant=known)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                truth = self._truth(operand)
                known = UNKNOWN if truth is None else not truth
                return replace(self._value(operand), constant=known)
            case ast.Attribute(value=owner) | ast.Subscript(value=owner):
                return replace(self._value(owner), constant=UNKNOWN)
            case ast.Call():
                return self._call(node)
        joined = _Value()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                joined = joined.joined(self._value(child))
        return replace(joined, constant=UNKNOWN)

    def _call(self, node: ast.Call) -> _Value:
        given = [self._value(argument) for argument in node.args]
        named = {keyword.arg: self._value(keyword.value) for keyword in node.keywords}
        match node.func:
            case ast.Attribute(value=ast.Name(id=module), attr=attr) if module in _LANGUAGE:
                return self._language(attr, [*given, *named.values()])
            case ast.Attribute(value=owner):
                return replace(self._value(owner), constant=UNKNOWN)
        target = self._resolver.target(node.func)
        if target is None or self._depth >= _MAX_DEPTH:
            joined = _Value()
            for value in (*given, *named.values()):
                joined = joined.joined(value)
            return replace(joined, constant=UNKNOWN)
        values = dict(zip(target.parameters(), given, strict=False))
        values.update({name: value for name, value in named.items() if name is not None})
        return self._kernel.function(target, values, self._depth + 1)

    def _language(self, name: str, given: list[_Value]) -> _Value:
        if name == "load" and given:
            self._kernel.note(self._kernel.loaded, given[0])
            return _POSITION  # an index of the cache, as far as it goes into an address
        if name == "store" and given:
            self._kernel.note(self._kernel.stored, given[0])
        if name in ("program_id", "arange", "range"):
            return _POSITION
        joined = _Value()
        for value in given:
            joined = joined.joined(value)
        return replace(joined, constant=UNKNOWN)
