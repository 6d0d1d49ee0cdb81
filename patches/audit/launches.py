"""Which kernels read or write a cache when a function of the tree runs, and by which layout.

The function is followed with the cache as one of its arguments. Tests are decided as far as the
constants that are known to hold decide them; where they do not, both branches are followed. A
kernel that is launched with the cache is read (`kernels`); an op outside the tree is known by a
keyword that tells its layout.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from patches.audit.calls import Bodies, CallResolver, Function
from patches.audit.classes import UNKNOWN, ClassLibrary
from patches.audit.constants import combined, compared
from patches.audit.kernels import Layout, accesses
from patches.audit.platforms import Truth, all_of, any_of
from patches.audit.syntax import last_name

_SAME_STORAGE = frozenset(
    ("view", "reshape", "unsqueeze", "squeeze", "flatten", "contiguous", "narrow", "permute")
)
"""Methods of a tensor that give the same tensor in another shape."""
_MAX_DEPTH = 8  # calls


@dataclass(frozen=True)
class Facts:
    """What holds while the code runs.

    `known` gives the value of whatever has one of these names: a variable that is not computed from
    anything known, an attribute, a flag of a module. `foreign` names the ops outside the tree that
    take a cache, with the keyword that says that its pages are tiled.
    """

    known: Mapping[str, object]
    foreign: Mapping[str, str]


@dataclass(frozen=True)
class Access:
    """A place where the cache is read or written; `function` launches it."""

    is_read: bool
    layout: Layout
    where: str
    function: str
    op: str


@dataclass(frozen=True)
class _Value:
    """A value in host code. `parts`: those of a tuple that is written out."""

    constant: object = UNKNOWN
    is_cache: bool = False
    parts: tuple["_Value", ...] = field(default=(), repr=False)


class Launches:
    """Follows functions of one tree on the platform of `library`."""

    def __init__(self, library: ClassLibrary, bodies: Bodies, facts: Facts) -> None:
        self._library = library
        self._bodies = bodies
        self.facts = facts
        self.found: list[Access] = []
        self._running: list[int] = []

    def follow(self, function: Function, cache: str) -> list[Access]:
        """Return what happens to the argument `cache` when `function` runs."""
        known = {name: _Value(value) for name, value in self.facts.known.items()}
        self.call(function, {**known, cache: _Value(is_cache=True)})
        return list(dict.fromkeys(self.found))

    def call(self, function: Function, given: Mapping[str, _Value]) -> _Value:
        """Run a function with some of its arguments known."""
        key = id(function.node)
        if key in self._running or len(self._running) >= _MAX_DEPTH:
            return _Value()
        self._running.append(key)
        try:
            return _Frame(self, function, self._arguments(function, given)).run()
        finally:
            self._running.pop()

    def resolver(self, function: Function) -> CallResolver:
        """What the calls in a function run."""
        body = self._bodies.of(function.module, function.node)
        return CallResolver(self._library, function, body)

    def launch(
        self, frame: Function, node: ast.Call, kernel: Function, given: Mapping[str, _Value]
    ) -> None:
        """Read a kernel that is launched with the cache."""
        caches = frozenset(name for name, value in given.items() if value.is_cache)
        if not caches:
            return
        constants = {
            name: value.constant for name, value in given.items() if value.constant is not UNKNOWN
        }
        seen = accesses(self._library, self._bodies, kernel, caches, constants)
        where = frame.module.where(node)
        for is_read, layout in ((True, seen.loads), (False, seen.stores)):
            if layout is not None:
                self.found.append(Access(is_read, layout, where, frame.name, kernel.name))

    def _arguments(self, function: Function, given: Mapping[str, _Value]) -> dict[str, _Value]:
        """The arguments given, and the constant defaults of those that are not."""
        defaults = {
            name: _Value(default.value)
            for name, default in function.defaults().items()
            if isinstance(default, ast.Constant)
        }
        return {**defaults, **given}


class _Frame:
    """The variables of one function while it runs."""

    def __init__(self, launches: Launches, function: Function, values: dict[str, _Value]) -> None:
        self._launches = launches
        self._known = launches.facts.known
        self._function = function
        self._resolver = launches.resolver(function)
        self._values = values
        self._returned: list[_Value] = []

    def run(self) -> _Value:
        self._block(self._function.node.body)
        constants = {id(value.constant): value for value in self._returned}
        only = self._returned[0] if len(constants) == 1 else _Value()
        return _Value(only.constant, any(value.is_cache for value in self._returned))

    def _block(self, body: list[ast.stmt]) -> bool:
        """Run statements; return whether the function surely ended in them."""
        return any(self._statement(node) for node in body)

    def _statement(self, node: ast.stmt) -> bool:
        match node:
            case ast.Return(value=value):
                self._returned.append(self._value(value) if value is not None else _Value(None))
                return True
            case ast.Raise():
                return True
            case ast.If():
                return self._if(node)
            case ast.For() | ast.While():
                if isinstance(node, ast.For):
                    self._assign(node.target, _Value())
                self._block(node.body)
            case ast.With():
                return self._block(node.body)
            case ast.Try():
                return self._block(node.body) or self._block(node.finalbody)
            case ast.Assign(targets=targets, value=value):
                found = self._value(value)
                for target in targets:
                    self._assign(target, found)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self._value(value))
            case ast.Expr(value=value):
                self._value(value)
        return False

    def _if(self, node: ast.If) -> bool:
        holds = self._truth(node.test)
        if holds is not None:
            return self._block(node.body if holds else node.orelse)
        before = dict(self._values)
        ended = self._block(node.body)
        after, self._values = self._values, before
        if self._block(node.orelse):
            self._values = after
            return ended
        if not ended:
            for name, value in after.items():
                other = self._values.get(name, _Value())
                if value != other:
                    self._values[name] = _Value(is_cache=value.is_cache or other.is_cache)
        return False

    def _assign(self, target: ast.expr, value: _Value) -> None:
        match target:
            case ast.Name(id=name):
                if value == _Value() and name in self._known:
                    value = _Value(self._known[name])
                self._values[name] = value
            case ast.Tuple(elts=elements):
                parts = value.parts if len(value.parts) == len(elements) else ()
                for position, element in enumerate(elements):
                    self._assign(element, parts[position] if parts else _Value())

    def _truth(self, test: ast.expr) -> Truth:
        match test:
            case ast.BoolOp(op=ast.And(), values=values):
                return all_of([self._truth(value) for value in values])
            case ast.BoolOp(op=ast.Or(), values=values):
                return any_of([self._truth(value) for value in values])
        constant = self._value(test).constant
        return None if constant is UNKNOWN else bool(constant)

    def _value(self, node: ast.expr) -> _Value:
        match node:
            case ast.Constant(value=value):
                return _Value(value)
            case ast.Name(id=name):
                return self._values.get(name, _Value(self._known.get(name, UNKNOWN)))
            case ast.Attribute(attr=attr):
                return _Value(self._known.get(attr, UNKNOWN))
            case ast.Subscript(value=value):
                return _Value(is_cache=self._value(value).is_cache)
            case ast.Tuple(elts=elements):
                return _Value(parts=tuple(self._value(element) for element in elements))
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                sides = self._value(left).constant, self._value(right).constant
                return _Value(compared(sides[0], operator, sides[1]))
            case ast.BinOp(left=left, op=operation, right=right):
                sides = self._value(left).constant, self._value(right).constant
                return _Value(combined(sides[0], operation, sides[1]))
            case ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return self._logical(node)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._choice(self._truth(test), body, orelse)
            case ast.Call():
                return self._call(node)
        return _Value()

    def _logical(self, node: ast.expr) -> _Value:
        if isinstance(node, ast.UnaryOp):
            holds = self._truth(node.operand)
            return _Value(UNKNOWN if holds is None else not holds)
        holds = self._truth(node)
        return _Value(UNKNOWN if holds is None else holds)

    def _choice(self, holds: Truth, body: ast.expr, orelse: ast.expr) -> _Value:
        if holds is not None:
            return self._value(body if holds else orelse)
        left, right = self._value(body), self._value(orelse)
        return left if left == right else _Value(is_cache=left.is_cache or right.is_cache)

    # Calls --------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> _Value:
        match node.func:
            case ast.Name(id="getattr") if len(node.args) > 1:
                name = node.args[1]
                known = name.value if isinstance(name, ast.Constant) else None
                return _Value(self._known.get(str(known), UNKNOWN))
            case ast.Subscript(value=launched):
                kernel = self._resolver.target(launched)
                if kernel is not None:
                    given = self._bound(kernel, node)
                    self._launches.launch(self._function, node, kernel, given)
                return _Value()
            case ast.Attribute(value=owner, attr=attr):
                holder = self._value(owner)
                if holder.is_cache:
                    return _Value(is_cache=attr in _SAME_STORAGE)
        target = self._resolver.target(node.func)
        if target is not None:
            given = self._bound(target, node)
            if any(value.is_cache for value in given.values()) or _is_predicate(given):
                return self._launches.call(target, given)
            return _Value()
        self._foreign(node)
        return _Value()

    def _foreign(self, node: ast.Call) -> None:
        """An op outside the tree that is handed the cache."""
        name = last_name(node.func)
        keyword = self._launches.facts.foreign.get(name)
        if keyword is None or not any(self._value(given).is_cache for given in node.args):
            return
        told = [self._truth(given.value) for given in node.keywords if given.arg == keyword]
        layout = Layout.TILES if any(holds is not False for holds in told) else Layout.ROWS
        where = self._function.module.where(node)
        self._launches.found.append(Access(True, layout, where, self._function.name, name))

    def _bound(self, target: Function, node: ast.Call) -> dict[str, _Value]:
        given: list[_Value] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                given += self._value(argument.value).parts
            else:
                given.append(self._value(argument))
        bound = dict(zip(target.parameters(), given, strict=False))
        for keyword in node.keywords:
            if keyword.arg is not None:
                bound[keyword.arg] = self._value(keyword.value)
        return bound


def _is_predicate(given: Mapping[str, _Value]) -> bool:
    """Whether a function is called with constants only: what it returns may be known."""
    return bool(given) and all(value.constant is not UNKNOWN for value in given.values())
