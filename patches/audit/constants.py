"""Constants of audited code, and what comparing and combining them gives."""

import ast
import operator
from collections.abc import Callable
from typing import Any

from patches.audit.classes import UNKNOWN

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def compared(left: object, comparison: ast.cmpop, right: object) -> object:
    """The outcome of a comparison; `UNKNOWN` unless both sides are known and can be compared."""
    return _applied(_COMPARISONS.get(type(comparison)), left, right)


def combined(left: object, operation: ast.operator, right: object) -> object:
    """The outcome of an operation; `UNKNOWN` unless both sides are known and can be combined."""
    return _applied(_ARITHMETIC.get(type(operation)), left, right)


def _applied(function: Callable[[Any, Any], object] | None, left: object, right: object) -> object:
    if function is None or UNKNOWN in (left, right):
        return UNKNOWN
    try:
        return function(left, right)
    except (TypeError, ArithmeticError):
        return UNKNOWN
