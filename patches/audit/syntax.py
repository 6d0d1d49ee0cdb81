"""Small questions about syntax trees."""

import ast
from collections.abc import Iterator, Mapping, Sequence

from patches.audit.callshape import CallShape
from patches.audit.modules import FunctionNode
from patches.audit.values import Value


def walk(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes and all below them, in no order: `ast.walk`, in half the time."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        for name in node._fields:
            child = getattr(node, name, None)
            if isinstance(child, ast.AST):
                waiting.append(child)
            elif isinstance(child, list):
                waiting += (item for item in child if isinstance(item, ast.AST))


def plain_assignments(node: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets of ``a = b = value`` with the value."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield target, node.value


def bind(
    function: FunctionNode, positional: list[Value], keywords: Mapping[str, Value], skipped: int
) -> dict[str, Value]:
    """Bind a call's known values to parameters, after the first `skipped`."""
    names = [parameter.arg for parameter in (*function.args.posonlyargs, *function.args.args)]
    accepted = {*names, *(parameter.arg for parameter in function.args.kwonlyargs)}
    bound = dict(zip(names[skipped:], positional, strict=False))
    bound.update({name: value for name, value in keywords.items() if name in accepted})
    return {name: value for name, value in bound.items() if value is not None}


def is_static(function: FunctionNode) -> bool:
    """Whether a method takes no instance."""
    return any(ast.unparse(node) == "staticmethod" for node in function.decorator_list)


def loads_model(function: FunctionNode) -> bool:
    """Whether a function calls ``get_model``, which is what makes a draft model."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "get_model"
        for node in ast.walk(function)
    )


def catches_attribute_error(caught: ast.expr | None) -> bool:
    """Whether an except clause for `caught` catches AttributeError."""
    if caught is None:
        return True
    names = {node.id for node in ast.walk(caught) if isinstance(node, ast.Name)}
    return bool(names & {"AttributeError", "Exception", "BaseException"})


def mentioned(node: ast.expr) -> set[str]:
    """Constant strings and attribute names in an expression."""
    found = set()
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute):
            found.add(child.attr)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            found.add(child.value)
    return found


def last_name(node: ast.expr) -> str:
    """The last name of a reference: ``fused_moe`` of ``ops.fused_moe``."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def names_in(node: ast.expr) -> set[str]:
    """Names, attribute names and constant strings in an expression."""
    return mentioned(node) | {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


def call_shape(node: ast.Call) -> CallShape:
    """How a call passes its arguments."""
    starred = any(isinstance(argument, ast.Starred) for argument in node.args)
    keywords = tuple(keyword.arg for keyword in node.keywords if keyword.arg is not None)
    return CallShape(
        None if starred else len(node.args), keywords, len(keywords) < len(node.keywords)
    )


def short(node: ast.expr, limit: int = 90) -> str:
    """Render an expression on one line of at most `limit` characters."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
