"""The Triton kernels of source files, read without importing: which there are, which differ.

A kernel is a function under `triton.jit` that no other one of the path calls; those are helpers,
and part of each kernel that calls them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class _Function:
    text: str
    calls: frozenset[str]


def of(sources: Mapping[str, bytes]) -> set[str]:
    """The kernels of some files, by class and name."""
    functions = {name: f for source in sources.values() for name, f in _functions(source)}
    helpers = {called for function in functions.values() for called in function.calls}
    return {name for name in functions if name.rpartition(".")[2] not in helpers}


def touched(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> set[str]:
    """The kernels of `after` that are not in `before`, or not the same, their helpers included."""
    old, new = _with_helpers(before), _with_helpers(after)
    return {name for name in of(after) if old.get(name) != new[name]}


def _with_helpers(sources: Mapping[str, bytes]) -> dict[str, str]:
    """The text of each function with that of the functions of the same files that it calls."""
    functions = {name: f for source in sources.values() for name, f in _functions(source)}

    def gathered(name: str, seen: frozenset[str]) -> str:
        function = functions[name]
        below = sorted((function.calls & functions.keys()) - seen - {name})
        return "".join([function.text, *(gathered(n, seen | {name}) for n in below)])

    return {name: gathered(name, frozenset()) for name in functions}


def _functions(source: bytes) -> Iterator[tuple[str, _Function]]:
    tree = ast.parse(source)
    for holder, prefix in _holders(tree):
        for node in holder.body:
            if isinstance(node, ast.FunctionDef) and _is_jit(node):
                calls = {
                    call.func.id
                    for call in ast.walk(node)
                    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
                }
                yield f"{prefix}{node.name}", _Function(ast.unparse(node), frozenset(calls))


def _holders(tree: ast.Module) -> Iterator[tuple[ast.Module | ast.ClassDef, str]]:
    yield tree, ""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node, f"{node.name}."


def _is_jit(node: ast.FunctionDef) -> bool:
    named = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    return any(isinstance(name, ast.Attribute) and name.attr == "jit" for name in named)
