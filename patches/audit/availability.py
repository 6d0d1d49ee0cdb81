"""Whether a question such as "does this backend run here?" can be answered yes on a platform.

vLLM's backends ask ``current_platform`` themselves, or functions of the tree that ask it, some of
them behind a decorator. Those functions are followed; every other part of an answer may be either.
"""

import ast
from collections.abc import Mapping

from patches.audit.calls import Bodies, CallResolver, Function
from patches.audit.classes import ClassLibrary
from patches.audit.modules import FUNCTIONS, FunctionNode
from patches.audit.platforms import Truth, all_of, any_of, negated, truth

_MAX_DEPTH = 6  # calls; a question that is asked deeper may be answered either way


class Availability:
    """Answers of one tree's functions on the platform of `library`."""

    def __init__(self, library: ClassLibrary, bodies: Bodies) -> None:
        self._library = library
        self._bodies = bodies
        self._known: dict[int, Truth] = {}

    def may_hold(self, function: Function) -> bool:
        """Whether calling `function` without known arguments may return something true."""
        return self._answer(function, 0) is not False

    def _answer(self, function: Function, depth: int) -> Truth:
        key = id(function.node)
        if key not in self._known:
            self._known[key] = None  # asked within itself: either
            self._known[key] = self._decorated(function, depth)
        return self._known[key]

    def _decorated(self, function: Function, depth: int) -> Truth:
        if depth > _MAX_DEPTH:
            return None
        plain = _Run(self, self._library, function, {}, depth).answer()
        for decorator in function.node.decorator_list:
            wrapping = self.resolver(function).target(decorator)
            wrapper = _wrapper_in(wrapping.node) if wrapping else None
            if wrapping is not None and wrapper is not None and wrapping.node.args.args:
                inner = Function(wrapping.module, wrapper)
                bound = {wrapping.node.args.args[0].arg: plain}
                plain = _Run(self, self._library, inner, bound, depth).answer()
        return plain

    def resolver(self, function: Function) -> CallResolver:
        """What the calls in a function run."""
        body = self._bodies.of(function.module, function.node)
        return CallResolver(self._library, function, body)

    def called(self, function: Function, depth: int) -> Truth:
        """The answer of a function that another one asks."""
        return self._answer(function, depth + 1)


class _Run:
    """One function body, run as far as tests of the platform decide it."""

    def __init__(
        self,
        owner: Availability,
        library: ClassLibrary,
        function: Function,
        bound: Mapping[str, Truth],
        depth: int,
    ) -> None:
        self._owner = owner
        self._library = library
        self._function = function
        self._resolver = owner.resolver(function)
        self._bound = bound
        self._depth = depth
        self._returned: list[Truth] = []

    def answer(self) -> Truth:
        """What is returned: True or False when every return that may be reached agrees."""
        if not self._ends(self._function.node.body):
            self._returned.append(False)  # None is returned at the end
        if any_of(self._returned) is False:  # also when every way ends in an exception
            return False
        return True if all_of(self._returned) else None

    def _ends(self, body: list[ast.stmt]) -> bool:
        for node in body:
            match node:
                case ast.Return(value=value):
                    self._returned.append(self._truth(value) if value is not None else False)
                    return True
                case ast.Raise():
                    return True
                case ast.If(test=test):
                    holds = self._truth(test)
                    ends = [self._ends(node.body)] if holds is not False else []
                    ends += [self._ends(node.orelse)] if holds is not True else []
                    if all(ends):
                        return True
                case ast.With() | ast.Try():
                    if self._ends(node.body):
                        return True
        return False

    def _truth(self, node: ast.expr) -> Truth:
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return negated(self._truth(operand))
            case ast.BoolOp(op=ast.And(), values=values):
                return all_of([self._truth(value) for value in values])
            case ast.BoolOp(op=ast.Or(), values=values):
                return any_of([self._truth(value) for value in values])
            case ast.Call(func=ast.Name(id=name)) if name in self._bound:
                return self._bound[name]
            case ast.Call(func=called):
                known = truth(self._without_alias(node), self._library.platform)
                target = self._resolver.target(called) if known is None else None
                return self._owner.called(target, self._depth) if target else known
        return truth(node, self._library.platform)

    def _without_alias(self, node: ast.Call) -> ast.expr:
        """``p.is_cuda()`` after ``p = current_platform``, as a test of the platform."""
        match node.func:
            case ast.Attribute(value=ast.Name(id=name), attr=attr):
                for statement in ast.walk(self._function.node):
                    match statement:
                        case ast.Assign(
                            targets=[ast.Name(id=alias)],
                            value=ast.Name(id="current_platform") as platform,
                        ) if alias == name:
                            return ast.Call(ast.Attribute(platform, attr), [], [])
        return node


def _wrapper_in(decorator: FunctionNode) -> FunctionNode | None:
    """The function that a decorator defines and returns."""
    return next((node for node in decorator.body if isinstance(node, FUNCTIONS)), None)
