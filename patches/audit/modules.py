"""Parsed modules of a tree and what a name in them stands for on one platform."""

import ast
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from patches.audit.platforms import Platform, Truth, all_of, negated, truth
from patches.audit.tree import MisuseError, SourceTree

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_MAX_HOPS = 16  # a re-export chain longer than this is a cycle
# Trees that are audited one after another share nearly all of their files; nobody writes to nodes.
_parsed = functools.lru_cache(maxsize=256)(ast.parse)


@dataclass(frozen=True)
class Import:
    """An imported name: member `name` of `module`, or the module itself when `name` is None."""

    module: str
    name: str | None


Test = tuple[ast.expr, bool]
"""A condition a binding stands under, and the outcome it needs."""
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.expr | Import


@dataclass(frozen=True)
class _Binding:
    tests: tuple[Test, ...]
    definition: Definition


@dataclass(frozen=True)
class Refusal:
    """A module that raises as soon as it is imported on some platform."""

    tests: tuple[Test, ...]
    message: str


class Module:
    """One parsed file. `name` is dotted, `path` is the file's path in the tree."""

    def __init__(self, index: "ModuleIndex", name: str, path: str, text: str) -> None:
        self.index = index
        self.name = name
        self.path = path
        try:
            self.body = _parsed(text, path).body
        except (SyntaxError, ValueError) as error:
            raise MisuseError(f"{path}: cannot be parsed: {error}") from error
        self.refusals: list[Refusal] = []
        self._bindings: dict[str, list[_Binding]] = {}
        self._star_imports: list[str] = []
        self._resolved: dict[tuple[str, str], Found | None] = {}
        self._scan(self.body, ())

    def names(self) -> list[str]:
        """Every name the module binds at its top level, on whichever platform."""
        return list(self._bindings)

    def own_expression(self, name: str) -> ast.expr | None:
        """The expression that a name of this very module is bound to, if it is bound to one."""
        for binding in self._bindings.get(name, []):
            if isinstance(binding.definition, ast.expr):
                return binding.definition
        return None

    def where(self, node: ast.AST) -> str:
        """Return ``path:line`` of a node of this module."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}"

    def classes(self) -> list[ast.ClassDef]:
        """The classes written at the module's top level."""
        return [node for node in self.body if isinstance(node, ast.ClassDef)]

    def refused_on(self, platform: Platform) -> str | None:
        """The message of the exception that importing this module raises on `platform`."""
        for refusal in self.refusals:
            if _tests_hold(refusal.tests, platform):
                return refusal.message
        return None

    def imports(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Import]]:
        """Yield the local name and the target of each name an import statement binds."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or whole, Import(whole, None)
            return
        base = self._absolute(node)
        for alias in node.names:
            if alias.name != "*":
                yield alias.asname or alias.name, Import(base, alias.name)

    def resolve(self, name: str, platform: Platform, hops: int = 0) -> "Found | None":
        """Return what `name` stands for at module level on `platform`; None when it is unknown."""
        key = (name, platform.name)
        if key not in self._resolved:
            self._resolved[key] = None  # a name that leads back to itself stays unknown
            self._resolved[key] = self._resolve(name, platform, hops)
        return self._resolved[key]

    def resolve_expression(
        self,
        node: ast.expr,
        platform: Platform,
        local_imports: Mapping[str, Import] | None = None,
    ) -> "Found | None":
        """Return what a name, ``module.name`` or ``Generic[...]`` stands for."""
        match node:
            case ast.Subscript(value=value):
                return self.resolve_expression(value, platform, local_imports)
            case ast.Name(id=name):
                if local_imports and name in local_imports:
                    return self.index.follow(local_imports[name], platform)
                return self.resolve(name, platform)
            case ast.Attribute(value=value, attr=attr):
                owner = self.resolve_expression(value, platform, local_imports)
                if owner is not None and owner.node is None:
                    return owner.module.resolve(attr, platform)
        return None

    def dotted(self, node: ast.expr) -> str:
        """Return the full dotted name of a reference, as far as the imports tell it."""
        base = node.value if isinstance(node, ast.Subscript) else node
        head, *rest = ast.unparse(base).split(".")
        for binding in self._bindings.get(head, []):
            if isinstance(binding.definition, Import):
                target = binding.definition
                head = f"{target.module}.{target.name}" if target.name else target.module
        return ".".join([head, *rest])

    def _resolve(self, name: str, platform: Platform, hops: int) -> "Found | None":
        if hops > _MAX_HOPS:
            return None
        definition = self._choose(name, platform)
        if definition is None:
            return self._resolve_elsewhere(name, platform, hops)
        if isinstance(definition, Import):
            return self.index.follow(definition, platform, hops + 1)
        if isinstance(definition, ast.Name) and definition.id != name:
            return self.resolve(definition.id, platform, hops + 1)
        return Found(self, definition)

    def _choose(self, name: str, platform: Platform) -> Definition | None:
        """Pick the binding in force: the last that surely runs, else the first that may run."""
        possible = [
            (binding, _tests_hold(binding.tests, platform))
            for binding in self._bindings.get(name, [])
        ]
        certain = [binding for binding, holds in possible if holds]
        perhaps = [binding for binding, holds in possible if holds is None]
        if certain and not (perhaps and isinstance(certain[-1].definition, ast.Constant)):
            return certain[-1].definition
        return perhaps[0].definition if perhaps else None

    def _resolve_elsewhere(self, name: str, platform: Platform, hops: int) -> "Found | None":
        lazy = self._choose("__getattr__", platform)
        if isinstance(lazy, FUNCTIONS) and name != "__getattr__":
            return _LazyExport(self, platform, name).run(lazy)
        for base in self._star_imports:
            module = self.index.get(base)
            found = module.resolve(name, platform, hops + 1) if module else None
            if found:
                return found
        return None

    def _scan(self, body: list[ast.stmt], tests: tuple[Test, ...]) -> None:
        for node in body:
            match node:
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._bind(node.name, tests, node)
                case ast.ImportFrom() | ast.Import():
                    self._scan_import(node, tests)
                case ast.If():
                    self._scan(node.body, (*tests, (node.test, True)))
                    self._scan(node.orelse, (*tests, (node.test, False)))
                case ast.Try():
                    # The handlers bind what holds only when the body failed: the body's binding,
                    # scanned later, is the one in force.
                    for handler in node.handlers:
                        self._scan(handler.body, tests)
                    for part in (node.body, node.orelse, node.finalbody):
                        self._scan(part, tests)
                case ast.With():
                    self._scan(node.body, tests)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._bind(name, tests, value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self._bind(name, tests, value)
                case ast.Raise(exc=ast.expr() as raised) if tests:
                    self.refusals.append(Refusal(tests, raise_message(raised)))

    def _scan_import(self, node: ast.Import | ast.ImportFrom, tests: tuple[Test, ...]) -> None:
        for name, target in self.imports(node):
            self._bind(name, tests, target)
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            self._star_imports.append(self._absolute(node))

    def _bind(self, name: str, tests: tuple[Test, ...], definition: Definition) -> None:
        self._bindings.setdefault(name, []).append(_Binding(tests, definition))

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.name.split(".")
        if not self.path.endswith("/__init__.py"):
            package = package[:-1]
        package = package[: len(package) - (node.level - 1)]
        return ".".join([*package, *([node.module] if node.module else [])])


@dataclass(frozen=True)
class Found:
    """What a name stands for: a node of `module`, or `module` itself when `node` is None."""

    module: Module = field(repr=False)
    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.expr | None


class ModuleIndex:
    """The modules of one tree, parsed when first asked for and kept."""

    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree
        self._modules: dict[str, Module | None] = {}

    def get(self, name: str) -> Module | None:
        """Return a module by its dotted name; None when it is not part of the tree."""
        if name not in self._modules:
            self._modules[name] = self._load(name)
        return self._modules[name]

    def at(self, path: str) -> Module:
        """Return the module in the file at `path`, which must exist."""
        name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        module = self.get(name)
        if module is None:
            raise MisuseError(f"{self.tree.label}: {path} is missing")
        return module

    def follow(self, target: Import, platform: Platform, hops: int = 0) -> Found | None:
        """Return what an imported name stands for on `platform`."""
        module = self.get(target.module)
        if target.name is None:
            return Found(module, None) if module else None
        found = module.resolve(target.name, platform, hops) if module else None
        if found is not None:
            return found
        submodule = self.get(f"{target.module}.{target.name}")
        return Found(submodule, None) if submodule else None

    def is_package(self, name: str) -> bool:
        """Whether a dotted name is a package of the tree; nothing is parsed to tell."""
        return self.tree.has(f"{name.replace('.', '/')}/__init__.py")

    def _load(self, name: str) -> Module | None:
        if name.partition(".")[0] != "vllm":
            return None
        base = name.replace(".", "/")
        for path in (f"{base}/__init__.py", f"{base}.py"):
            text = self.tree.read(path)
            if text is not None:
                return Module(self, name, path, text)
        return None


class _LazyExport:
    """Runs a module's ``__getattr__`` for one name on one platform, as far as it is plain code."""

    def __init__(self, module: Module, platform: Platform, name: str) -> None:
        self._module = module
        self._platform = platform
        self._name = name
        self._parameter = ""
        self._imports: dict[str, Import] = {}

    def run(self, function: FunctionNode) -> Found | None:
        self._parameter = function.args.args[0].arg if function.args.args else ""
        return self._run(function.body)[1]

    def _run(self, body: list[ast.stmt]) -> tuple[bool, Found | None]:
        """Return whether the function ended here, and what it returned."""
        for node in body:
            match node:
                case ast.Import() | ast.ImportFrom():
                    self._imports.update(self._module.imports(node))
                case ast.If():
                    holds = self._truth(node.test)
                    for branch, taken in ((node.body, holds), (node.orelse, negated(holds))):
                        ended, found = self._run(branch) if taken is not False else (False, None)
                        if ended and (taken or found):
                            return True, found
                case ast.Return(value=ast.expr() as value):
                    return True, self._value(value)
                case ast.Return() | ast.Raise():
                    return True, None
        return False, None

    def _truth(self, test: ast.expr) -> Truth:
        match test:
            case ast.Compare(left=ast.Name(id=left), ops=[operator], comparators=[right]) if (
                left == self._parameter
            ):
                members = self._strings(right)
                if members is None or not isinstance(operator, ast.Eq | ast.In):
                    return None
                return self._name in members
        return truth(test, self._platform)

    def _strings(self, node: ast.expr) -> set[str] | None:
        if isinstance(node, ast.Name):
            found = self._module.resolve(node.id, self._platform)
            return self._strings(found.node) if found and isinstance(found.node, ast.expr) else None
        try:
            value = ast.literal_eval(node)
            return {value} if isinstance(value, str) else set(value)
        except (ValueError, TypeError):
            return None

    def _value(self, node: ast.expr) -> Found | None:
        match node:
            case ast.Call(
                func=ast.Name(id="getattr"), args=[owner, ast.Name(id=attribute), *_]
            ) if attribute == self._parameter:
                node = ast.Attribute(value=owner, attr=self._name)
            case ast.Subscript(value=ast.Dict(keys=keys, values=values)):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == self._name:
                        node = value
        return self._module.resolve_expression(node, self._platform, self._imports)


def raise_message(raised: ast.expr) -> str:
    """Render what a raise statement raises on one line, with adjacent strings joined."""
    if isinstance(raised, ast.Call) and raised.args and isinstance(raised.args[0], ast.Constant):
        return f"{ast.unparse(raised.func)}: {raised.args[0].value!s}"
    return " ".join(ast.unparse(raised).split())


def _tests_hold(tests: tuple[Test, ...], platform: Platform) -> Truth:
    outcomes = [truth(test, platform) for test, _ in tests]
    return all_of(
        [
            outcome if needed else negated(outcome)
            for outcome, (_, needed) in zip(outcomes, tests, strict=True)
        ]
    )
