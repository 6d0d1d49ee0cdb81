"""Which function of the tree a call runs, and what it leaves out of that function's parameters."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from patches.audit.classes import ClassLibrary, ClassModel
from patches.audit.modules import FUNCTIONS, FunctionNode, Import, Module
from patches.audit.syntax import is_static, walk


@dataclass(frozen=True)
class Function:
    """A function of the tree, and the class it is a method of, if it is one.

    `owner` is the class that defines it; `instance` the class of the object it runs on.
    """

    module: Module = field(repr=False)
    node: FunctionNode
    owner: ClassModel | None = None
    instance: ClassModel | None = None

    @property
    def name(self) -> str:
        """``function``, or ``Class.method``."""
        return f"{self.owner.name}.{self.node.name}" if self.owner else self.node.name

    @property
    def where(self) -> str:
        """``path:line`` of its definition."""
        return self.module.where(self.node)

    def parameters(self) -> list[str]:
        """The parameters that a caller may pass by position."""
        arguments = self.node.args
        names = [parameter.arg for parameter in (*arguments.posonlyargs, *arguments.args)]
        is_bound = self.owner is not None and not is_static(self.node)
        return names[1:] if is_bound else names

    def defaults(self) -> dict[str, ast.expr]:
        """The default of each parameter that has one."""
        arguments = self.node.args
        names = [parameter.arg for parameter in (*arguments.posonlyargs, *arguments.args)]
        first = len(names) - len(arguments.defaults)
        found = dict(zip(names[first:], arguments.defaults, strict=True))
        for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if default is not None:
                found[parameter.arg] = default
        return found

    def left_out(self, call: ast.Call) -> dict[str, ast.expr]:
        """The defaults that a call falls back to; none when it passes ``*args`` or ``**kwargs``."""
        if any(isinstance(argument, ast.Starred) for argument in call.args):
            return {}
        if any(keyword.arg is None for keyword in call.keywords):
            return {}
        given = {*self.parameters()[: len(call.args)], *(keyword.arg for keyword in call.keywords)}
        return {name: node for name, node in self.defaults().items() if name not in given}


@dataclass(frozen=True)
class Body:
    """What a function's body holds: its calls, its imports, the names and strings it mentions."""

    calls: tuple[ast.Call, ...]
    imports: Mapping[str, Import]
    names: frozenset[str]


class Bodies:
    """The bodies of one tree's functions, each walked once."""

    def __init__(self) -> None:
        self._known: dict[int, Body] = {}

    def of(self, module: Module, function: FunctionNode) -> Body:
        """Return what the body of a function of `module` holds."""
        key = id(function)
        if key not in self._known:
            self._known[key] = _walked(module, function)
        return self._known[key]


class CallResolver:
    """Finds the functions that the calls in one function's body run, on one platform."""

    def __init__(self, library: ClassLibrary, function: Function, body: Body) -> None:
        self._library = library
        self._function = function
        self._body = body

    def calls(self) -> Iterator[tuple[ast.Call, Function]]:
        """Yield the calls whose function is one of the tree's."""
        for node in self._body.calls:
            target = self.target(node.func)
            if target is not None:
                yield node, target

    def target(self, called: ast.expr) -> Function | None:
        """Return what ``name(...)``, ``module.name(...)`` or ``object.method(...)`` runs."""
        match called:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=attr):
                return self._method(self._function.instance, attr)
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=attr):
                return self._method(self._function.instance, attr, after=self._function.owner)
        module = self._function.module
        found = module.resolve_expression(called, self._library.platform, self._body.imports)
        if found is not None and isinstance(found.node, FUNCTIONS):
            return Function(found.module, found.node)
        if found is None and isinstance(called, ast.Attribute):
            return self._method(self._class(called.value), called.attr)
        return None

    def _method(
        self, cls: ClassModel | None, name: str, after: ClassModel | None = None
    ) -> Function | None:
        return method_of(cls, name, after) if cls is not None else None

    def _class(self, node: ast.expr) -> ClassModel | None:
        module = self._function.module
        found = module.resolve_expression(node, self._library.platform, self._body.imports)
        if found is not None and isinstance(found.node, ast.ClassDef):
            return self._library.model(found.module, found.node)
        return None


def method_of(cls: ClassModel, name: str, after: ClassModel | None = None) -> Function | None:
    """The method `name` of a class, its own or a base's; `after` skips as ``super()`` does."""
    found = cls.find_method(name, after)
    return Function(found[0].module, found[1], found[0], cls) if found else None


def _walked(module: Module, function: FunctionNode) -> Body:
    calls: list[ast.Call] = []
    imports: dict[str, Import] = {}
    names: set[str] = set()
    for node in walk(function.body):
        match node:
            case ast.Call():
                calls.append(node)
            case ast.Attribute(attr=name):
                names.add(name)
            case ast.Constant(value=str() as text):
                names.add(text)
            case ast.Import() | ast.ImportFrom():
                imports.update(module.imports(node))
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    return Body(tuple(calls), imports, frozenset(names))
