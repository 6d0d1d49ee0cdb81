"""The platforms vLLM forks model code for, and what platform tests in code mean on each."""

import ast
from dataclasses import dataclass

Truth = bool | None
"""True, False, or None for "cannot be told without running the code"."""


@dataclass(frozen=True)
class Platform:
    """One platform: the folder its model code lives in and what ``current_platform`` answers."""

    name: str
    device_type: str
    predicates: frozenset[str]
    """The ``current_platform.is_*`` methods that answer True."""


PLATFORMS = {
    platform.name: platform
    for platform in (
        Platform("nvidia", "cuda", frozenset({"is_cuda", "is_cuda_alike"})),
        Platform("amd", "cuda", frozenset({"is_rocm", "is_cuda_alike"})),
        Platform("xpu", "xpu", frozenset({"is_xpu"})),
        Platform("cpu", "cpu", frozenset({"is_cpu"})),
        Platform("tpu", "tpu", frozenset({"is_tpu"})),
    )
}
"""By name. Source: vllm/platforms/interface.py; the names are the folders below vllm/models/*/."""


def truth(test: ast.expr, platform: Platform) -> Truth:
    """Evaluate a test that depends on the platform only; None for everything else."""
    match test:
        case ast.Constant(value=value):
            return bool(value)
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return False
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return negated(truth(operand, platform))
        case ast.BoolOp(op=ast.And(), values=values):
            return all_of([truth(value, platform) for value in values])
        case ast.BoolOp(op=ast.Or(), values=values):
            return any_of([truth(value, platform) for value in values])
        case ast.Call(func=ast.Attribute(value=owner, attr=name)) if _is_platform(owner):
            known = any(name in other.predicates for other in PLATFORMS.values())
            return name in platform.predicates if known else None
        case ast.Compare(
            left=ast.Attribute(value=owner, attr="device_type"),
            ops=[ast.Eq() | ast.NotEq() as operator],
            comparators=[ast.Constant(value=value)],
        ) if _is_platform(owner):
            return (platform.device_type == value) == isinstance(operator, ast.Eq)
    return None


def negated(value: Truth) -> Truth:
    """Three-valued not."""
    return None if value is None else not value


def all_of(values: list[Truth]) -> Truth:
    """Three-valued and."""
    if False in values:
        return False
    return None if None in values else True


def any_of(values: list[Truth]) -> Truth:
    """Three-valued or."""
    return negated(all_of([negated(value) for value in values]))


def _is_platform(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id == "current_platform") or (
        isinstance(node, ast.Attribute) and node.attr == "current_platform"
    )
