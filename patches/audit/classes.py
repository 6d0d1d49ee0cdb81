"""What a class provides: the attributes its instances have, found without creating one."""

import ast
import re
from collections.abc import Iterator
from functools import cached_property

from patches.audit.bodies import ClassBody
from patches.audit.callshape import CallShape, signature_problem
from patches.audit.modules import FunctionNode, Module, Test, raise_message
from patches.audit.platforms import Platform, truth
from patches.audit.provisions import (
    NN_MODULE_ATTRIBUTES,
    OBJECT_ATTRIBUTES,
    Provision,
    cover_everything,
    test_text,
)

_PROPERTY_DECORATORS = frozenset({"property", "cached_property", "functools.cached_property"})
_TRANSPARENT_BASE = re.compile(
    r"(^|\.)(Module|ABC|Protocol|Generic|object|Enum|IntEnum|NamedTuple)$"
)
_MAX_TYPE_DEPTH = 8  # a property that returns a property of a property ...

UNKNOWN = object()
"""A value that cannot be told without running the code."""
ClassKey = tuple[str, str]
"""Module name and class name: enough to tell two classes of one tree apart."""


class ClassModel:
    """One class as it is on one platform, with its bases resolved across the tree."""

    def __init__(self, library: "ClassLibrary", module: Module, node: ast.ClassDef) -> None:
        self._library = library
        self._platform = library.platform
        self.module = module
        self.node = node
        self.name = node.name
        self.key: ClassKey = (module.name, node.name)
        self.qualified_name = f"{module.name}.{node.name}"
        self.where = module.where(node)
        self.bases: list[ClassModel] = []
        self.external_bases: list[str] = []
        self._body = ClassBody(node.body, library.platform)
        self.methods = self._body.methods
        self._provisions: dict[str, Provision | None] = {}

    def link_bases(self) -> None:
        """Resolve the bases; separate from construction because classes may refer to each other."""
        for base in self.node.bases:
            found = self._library.class_at(self.module, base)
            if found is not None and found is not self:
                self.bases.append(found)
            else:
                self.external_bases.append(self.module.dotted(base))

    @cached_property
    def mro(self) -> "list[ClassModel]":
        """The class and its bases in the order Python searches them (C3 linearisation)."""
        sequences = [list(base.mro) for base in self.bases] + [list(self.bases)]
        order = [self]
        while sequences := [sequence for sequence in sequences if sequence]:
            heads = [sequence[0] for sequence in sequences]
            free = (h for h in heads if not any(h in sequence[1:] for sequence in sequences))
            chosen = next(free, heads[0])
            order.append(chosen)
            for sequence in sequences:
                if sequence[0] is chosen:
                    del sequence[0]
        return order

    @cached_property
    def is_module(self) -> bool:
        """Whether instances are torch.nn.Module objects."""
        names = (base for cls in self.mro for base in cls.external_bases)
        return any(name.rpartition(".")[2] == "Module" for name in names)

    @cached_property
    def opaque_because(self) -> str | None:
        """Why a missing attribute proves nothing: an unknown base, or attributes made at will."""
        for cls in self.mro:
            unknown = [base for base in cls.external_bases if not _TRANSPARENT_BASE.search(base)]
            if unknown:
                return f"{cls.name} has a base outside the tree: {', '.join(unknown)}"
            if "__getattr__" in cls.methods or "__getattribute__" in cls.methods:
                return f"{cls.name} defines __getattr__"
            if cls._body.sets_unknown_names:
                return f"{cls.name} sets attributes whose names are computed"
        return None

    @cached_property
    def stub_message(self) -> str | None:
        """What the constructor raises whatever it is given; None for a real class."""
        found = self.find_method("__init__")
        if found is None:
            return None
        for node in found[1].body:
            if isinstance(node, ast.Raise) and node.exc is not None:
                return raise_message(node.exc)
        return None

    def find_method(
        self, name: str, after: "ClassModel | None" = None
    ) -> "tuple[ClassModel, FunctionNode] | None":
        """Return the method `name` and the class that defines it; `after` skips as super() does."""
        start = self.mro.index(after) + 1 if after in self.mro else 0
        for cls in self.mro[start:]:
            if name in cls.methods:
                return cls, cls.methods[name]
        return None

    def provision(self, name: str) -> Provision | None:
        """Return how instances come by the attribute `name`; None when nothing provides it."""
        if name not in self._provisions:
            self._provisions[name] = self._find_provision(name)
        return self._provisions[name]

    def _find_provision(self, name: str) -> Provision | None:
        for cls in self.mro:
            found = cls._own_class_attribute(name) or cls._own_instance_attribute(name, self)
            if found is not None:
                return found
        if self.is_module and name in NN_MODULE_ATTRIBUTES:
            return Provision("torch.nn.Module attribute", self.where, "torch.nn.Module")
        if name in OBJECT_ATTRIBUTES:
            return Provision("object attribute", self.where, "object")
        return None

    def call_problem(self, name: str, call: CallShape) -> str | None:
        """Return why calling the method `name` like that raises; None if it works or is unknown."""
        provision = self.provision(name)
        if provision is None or provision.kind != "method" or provision.method is None:
            return None
        if any(ast.unparse(node) == "staticmethod" for node in provision.method.decorator_list):
            return None
        return signature_problem(provision.method, call)

    def attribute_type(self, name: str, depth: int = 0) -> "ClassModel | None":
        """Return the class of the attribute `name`, when it is set from a visible constructor."""
        for cls in self.mro:
            for assignment in cls._body.assignments.get(name, []):
                found = self._type_of(assignment.value, cls, depth) if assignment.value else None
                if found is not None:
                    return found
            method = cls.methods.get(name)
            if method is not None and is_property(method):
                return self._returned_type(cls, method, depth)
        return None

    def class_values(self, name: str) -> "list[tuple[ClassModel, ast.expr]]":
        """Return the expressions assigned to the class attribute `name` along the bases."""
        return [
            (cls, value)
            for cls in self.mro
            for _, value in [cls._body.class_attributes.get(name, (None, None))]
            if value is not None
        ]

    def constant(self, name: str) -> object:
        """Return the constant that the class attribute `name` is, or `UNKNOWN`."""
        provision = self.provision(name)
        values = self.class_values(name)
        if provision is None or provision.kind != "class attribute" or not values:
            return UNKNOWN
        if any(name in cls._body.assignments for cls in self.mro):
            return UNKNOWN  # an instance may carry another value
        value = values[0][1]
        return value.value if isinstance(value, ast.Constant) else UNKNOWN

    def class_attribute_names(self) -> list[str]:
        """The names this class itself assigns in its body."""
        return list(self._body.class_attributes)

    def public_surface(self) -> dict[str, Provision]:
        """Class attributes, methods and properties without a leading underscore, by name."""
        names = {
            name
            for cls in self.mro
            for name in (*cls._body.class_attributes, *cls.methods)
            if not name.startswith("_")
        }
        found = ((name, self.provision(name)) for name in sorted(names))
        return {name: provision for name, provision in found if provision is not None}

    @cached_property
    def _run_by_constructor(self) -> set[str]:
        """The methods that ``__init__`` runs, followed through calls on ``self`` and ``super``."""
        reached: set[str] = set()
        waiting = ["__init__"]
        while waiting:
            name = waiting.pop()
            if name in reached:
                continue
            reached.add(name)
            for cls in self.mro:
                if name in cls.methods:
                    waiting += _self_calls(cls.methods[name])
        return reached

    def _own_class_attribute(self, name: str) -> Provision | None:
        if name in self.methods:
            method = self.methods[name]
            kind = "property" if is_property(method) else "method"
            return Provision(kind, self.module.where(method), self.name, method=method)
        if name in self._body.class_attributes:
            node = self._body.class_attributes[name][0]
            return Provision("class attribute", self.module.where(node), self.name)
        return None

    def _own_instance_attribute(self, name: str, instance: "ClassModel") -> Provision | None:
        assignments = self._body.assignments.get(name)
        if not assignments:
            if any(pattern.fullmatch(name) for pattern in self._body.assigned_patterns):
                return Provision("instance attribute (computed name)", self.where, self.name)
            return None
        where = self.module.where(assignments[0].node)
        built = [a for a in assignments if a.method in instance._run_by_constructor]
        condition = None
        if not built:
            methods = sorted({f"{a.method}()" for a in assignments})
            condition = f"only once {', '.join(methods)} ran"
        elif not cover_everything([self._open_tests(a.tests) for a in built]):
            condition = "if " + " and ".join(
                test_text(test) for test in self._open_tests(built[0].tests)
            )
        return Provision("instance attribute", where, self.name, condition)

    def _open_tests(self, tests: tuple[Test, ...]) -> tuple[Test, ...]:
        return tuple(test for test in tests if truth(test[0], self._platform) is None)

    def _type_of(
        self, value: ast.expr | None, owner: "ClassModel", depth: int
    ) -> "ClassModel | None":
        if value is None or depth > _MAX_TYPE_DEPTH:
            return None
        match value:
            case ast.IfExp(body=body, orelse=orelse):
                return self._type_of(body, owner, depth) or self._type_of(orelse, owner, depth)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=attr)):
                return self._constructed_by(attr, depth)
            case ast.Call(func=function):
                return self._library.class_at(owner.module, function)
            case ast.Attribute(value=ast.Name(id="self"), attr=attr):
                return self.attribute_type(attr, depth + 1)
            case ast.Attribute(value=inner, attr=attr):
                holder = self._type_of(inner, owner, depth + 1)
                return holder.attribute_type(attr, depth + 1) if holder else None
        return None

    def _constructed_by(self, attr: str, depth: int) -> "ClassModel | None":
        """The class of ``self.attr(...)``: a class attribute that holds a class, or a factory."""
        for cls, value in self.class_values(attr):
            found = self._library.class_at(cls.module, value)
            if found is not None:
                return found
        factory = self.find_method(attr)
        return self._returned_type(*factory, depth) if factory else None

    def _returned_type(
        self, owner: "ClassModel", method: FunctionNode, depth: int
    ) -> "ClassModel | None":
        for node in ast.walk(method):
            if isinstance(node, ast.Return):
                found = self._type_of(node.value, owner, depth + 1)
                if found is not None:
                    return found
        return None


class ClassLibrary:
    """The classes of a tree as they are on one platform."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self._classes: dict[ClassKey, ClassModel] = {}

    def model(self, module: Module, node: ast.ClassDef) -> ClassModel:
        """Return the model of the class that `node` defines in `module`."""
        key = (module.name, node.name)
        if key not in self._classes:
            self._classes[key] = ClassModel(self, module, node)
            self._classes[key].link_bases()
        return self._classes[key]

    def class_at(self, module: Module, node: ast.expr) -> ClassModel | None:
        """Return the class that an expression in `module` refers to, if it is one of the tree's."""
        found = module.resolve_expression(node, self.platform)
        if found is not None and isinstance(found.node, ast.ClassDef):
            return self.model(found.module, found.node)
        return None


def _self_calls(method: FunctionNode) -> Iterator[str]:
    for node in ast.walk(method):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            is_self = isinstance(owner, ast.Name) and owner.id == "self"
            is_super = (
                isinstance(owner, ast.Call)
                and isinstance(owner.func, ast.Name)
                and owner.func.id == "super"
            )
            is_base = node.func.attr == "__init__"  # Base.__init__(self, ...)
            if is_self or is_super or is_base:
                yield node.func.attr


def is_property(method: FunctionNode) -> bool:
    """Whether a method is read like an attribute."""
    return any(ast.unparse(node) in _PROPERTY_DECORATORS for node in method.decorator_list)


def is_docstring(node: ast.stmt) -> bool:
    """Whether a statement is a bare constant: a docstring or an ellipsis."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
