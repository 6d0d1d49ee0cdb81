"""What an expression is, and what it reads: attributes, calls, comprehensions, assignments."""

import ast

from patches.audit.classes import ClassModel, is_property
from patches.audit.conditions import DRAFT, negate, parts_of
from patches.audit.modules import FUNCTIONS, FunctionNode
from patches.audit.readgraph import CALL, Kind
from patches.audit.recording import Recorder
from patches.audit.syntax import bind, call_shape, is_static, loads_model
from patches.audit.values import (
    Models,
    Reference,
    SpeculatorSelf,
    Strings,
    Value,
    choice,
    stepped,
    strings_of,
    union,
)

_FOLLOWED = (
    "vllm.v1.",
    "vllm.model_executor.models.interfaces",
    "vllm.model_executor.models.utils",
)
"""Modules whose functions are entered when a model is passed to them."""
_SPECULATOR_CODE = ("vllm.v1.spec_decode", "vllm.v1.worker.gpu.spec_decode")


class Expressions(Recorder):
    """Evaluates the expressions of one function body."""

    def _children(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._evaluate(child)
            else:
                self._part(child)

    def _part(self, node: ast.AST) -> None:
        """What stands in an expression and is none: a keyword, a slice, a part of a match."""
        self._children(node)

    def _assign(self, target: ast.expr, value: Value, expression: ast.expr) -> None:
        match target:
            case ast.Name(id=name):
                self._values[name] = stepped(value, self._step(target, expression))
                self._tests[name] = self.condition(expression)
            case ast.Attribute(value=owner, attr=attr):
                self._assign_attribute(self._evaluate(owner), attr, value, target, expression)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                for element in elements:
                    self._assign(element, None, ast.Constant(value=...))
            case ast.Starred(value=inner):
                self._assign(inner, None, expression)
            case _:
                self._evaluate(target)

    def _assign_attribute(
        self, owner: Value, attr: str, value: Value, target: ast.expr, expression: ast.expr
    ) -> None:
        if isinstance(owner, SpeculatorSelf):
            self._interpreter.note_flag(attr, self.condition(expression), expression)
            if isinstance(value, Models):
                step = self._step(target, expression)
                self._interpreter.attributes[attr] = value.after(step)
        elif isinstance(owner, Models):
            self._record(owner, attr, Kind.STORED, target)

    def _evaluate(self, node: ast.expr) -> Value:
        """Interpret an expression: record the reads in it and return what it is."""
        match node:
            case ast.Name(id=name):
                return self._named(name)
            case ast.Constant(value=str() as text):
                return Strings((text,))
            case ast.Attribute(value=owner, attr=attr):
                return self._attribute(node, self._evaluate(owner), attr)
            case ast.Call():
                return self._call(node)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self._evaluate(test)
                condition = self.condition(test)
                with self._under(condition):
                    left = self._evaluate(body)
                with self._under(negate(condition)):
                    right = self._evaluate(orelse)
                return choice(left, right, condition)
            case ast.BoolOp(op=operator, values=values):
                return self._bool_op(isinstance(operator, ast.And), values)
            case ast.NamedExpr(target=target, value=value):
                found = self._evaluate(value)
                self._assign(target, found, value)
                return found
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                self._comprehension(node)
            case ast.Lambda(body=body):
                self._evaluate(body)
            case _:
                self._children(node)
        return None

    def _attribute(self, node: ast.Attribute, owner: Value, attr: str) -> Value:
        if isinstance(owner, SpeculatorSelf):
            kept = self._kept_model(node, attr)
            if kept is not None:
                return kept
            if self._interpreter.speculator.find_method(attr):
                return self._refer_to_method(node, attr)
            values = self._interpreter.speculator.class_values(attr)
            return strings_of(values[0][1]) if values else None
        return self._read(owner, attr, node) if isinstance(owner, Models) else None

    def _refer_to_method(self, node: ast.Attribute, attr: str) -> Value:
        """A property of the speculator, or a method handed to something that will call it."""
        found = self._interpreter.speculator.find_method(attr)
        assert found is not None
        owner, function = found
        frame = self._interpreter.enter_method(owner, function, {})
        value = self._called(frame, node)
        return value if is_property(function) else None

    def _bool_op(self, is_and: bool, values: list[ast.expr]) -> Value:
        depth = len(self._conditions)
        result: Value = None
        for value in values:
            found = self._evaluate(value)
            result = found if is_and else union(result, found)
            condition = self.condition(value)
            self._conditions += parts_of(condition if is_and else negate(condition))
        del self._conditions[depth:]
        return result

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> None:
        before = dict(self._values)
        depth = len(self._conditions)
        for generator in node.generators:
            self._evaluate(generator.iter)
            self._assign(generator.target, self._element(generator.iter), generator.iter)
            for test in generator.ifs:
                self._evaluate(test)
                self._conditions += parts_of(self.condition(test))
        elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for element in elements:
            self._evaluate(element)
        del self._conditions[depth:]
        self._values = before

    def _element(self, iterated: ast.expr) -> Value:
        """What a loop variable is: one of the elements, when they are written out."""
        if isinstance(iterated, ast.Name):
            local = self._values.get(iterated.id)
            if isinstance(local, Strings):
                return local
            iterated = self._module.own_expression(iterated.id) or iterated
        if isinstance(iterated, ast.Tuple | ast.List | ast.Set):
            result: Value = None
            for element in iterated.elts:
                result = union(result, self.quietly(element))
            return result
        return None

    def _strings(self, node: ast.expr) -> tuple[str, ...]:
        """The constant strings an attribute name may be, also when it is imported."""
        value = self._evaluate(node)
        if value is None and isinstance(node, ast.Name):
            found = self._module.resolve_expression(node, self._platform, self._imports)
            value = strings_of(found.node) if found and isinstance(found.node, ast.expr) else None
        return value.values if isinstance(value, Strings) else ()

    def _call(self, node: ast.Call) -> Value:
        match node:
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr" as builtin), args=[owner, name, *_]
            ):
                return self._getattr(node, builtin, owner, name)
            case ast.Call(func=ast.Name(id="setattr"), args=[owner, name, value]):
                self._evaluate(value)
                for attr in self._strings(name):
                    self._record(self._evaluate(owner), attr, Kind.STORED, node)
                return None
            case ast.Call(func=ast.Name(id="delattr"), args=[owner, name]):
                for attr in self._strings(name):
                    self._read(self._evaluate(owner), attr, node)
                return None
            case ast.Call(func=ast.Name(id="cast") | ast.Attribute(attr="cast"), args=[_, value]):
                return self._evaluate(value)
            case ast.Call(
                func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=attr)
            ) if self._owner is not None:
                return self._call_method(node, attr, after=self._owner)
            case ast.Call(func=ast.Attribute(value=owner, attr=attr)):
                return self._call_attribute(node, owner, attr)
        return self._call_name(node)

    def _getattr(self, node: ast.Call, builtin: str, owner: ast.expr, name: ast.expr) -> Value:
        model = self._evaluate(owner)
        names = self._strings(name)
        for default in node.args[2:]:
            self._evaluate(default)
        if not isinstance(model, Models):
            return None
        if not names:
            self._record(model, f"<{ast.unparse(name)}>", Kind.UNRESOLVED, node)
            return None
        required = builtin == "getattr" and len(node.args) == 2
        result: Value = None
        for attr in names:
            self._record(model, attr, Kind.REQUIRED if required else Kind.OPTIONAL, node)
            if builtin == "getattr":
                below = [r.attribute(attr, not required) for r in model.references]
                result = union(result, Models(tuple(below)))
        return result

    def _call_attribute(self, node: ast.Call, owner: ast.expr, attr: str) -> Value:
        holder = self._evaluate(owner)
        if isinstance(holder, SpeculatorSelf):
            function = node.func
            kept = self._kept_model(function, attr) if isinstance(function, ast.Attribute) else None
            return self._call_model(node, kept) if kept else self._call_method(node, attr)
        if isinstance(holder, Models):
            self._arguments(node)
            self._record(holder, attr, Kind.REQUIRED, node, call_shape(node))
            return None
        return self._call_function(node, attr)

    def _call_name(self, node: ast.Call) -> Value:
        if not isinstance(node.func, ast.Name):
            self._evaluate(node.func)
            self._arguments(node)
            return None
        local = self._values.get(node.func.id)
        if isinstance(local, Models):
            return self._call_model(node, local)
        return self._call_function(node, node.func.id)

    def _call_model(self, node: ast.Call, model: Models) -> Value:
        self._arguments(node)
        self._record(model, CALL, Kind.REQUIRED, node, call_shape(node))
        return None

    def _call_method(self, node: ast.Call, attr: str, after: ClassModel | None = None) -> Value:
        positional, keywords = self._arguments(node)
        method = self._interpreter.speculator.find_method(attr, after)
        if method is None:
            return None
        owner, function = method
        skipped = 0 if is_static(function) else 1
        arguments = bind(function, positional, keywords, skipped)
        arguments = self._passed(arguments, function, node)
        frame = self._interpreter.enter_method(owner, function, arguments)
        return self._called(frame, node)

    def _call_function(self, node: ast.Call, name: str) -> Value:
        positional, keywords = self._arguments(node)
        if name == "get_model":
            step = f"{self._module.where(node)}: get_model(...) returns the draft model"
            return Models((Reference(DRAFT, (), origin=(step,)),))
        values = (*positional, *keywords.values())
        gets_model = any(isinstance(value, Models) for value in values)
        if not (gets_model or "load" in name):
            return None  # do not parse the modules of functions that have nothing to do with models
        found = self._module.resolve_expression(node.func, self._platform, self._imports)
        if found is None or not isinstance(found.node, FUNCTIONS):
            return None
        name_of_module = found.module.name
        loads = name_of_module.startswith(_SPECULATOR_CODE) and loads_model(found.node)
        if not (loads or (gets_model and name_of_module.startswith(_FOLLOWED))):
            return None
        arguments = self._passed(bind(found.node, positional, keywords, 0), found.node, node)
        return self._called(
            self._interpreter.enter(found.module, found.node, arguments, None), node
        )

    def _arguments(self, node: ast.Call) -> tuple[list[Value], dict[str, Value]]:
        positional = []
        for argument in node.args:
            starred = isinstance(argument, ast.Starred)
            value = self._evaluate(
                argument.value if isinstance(argument, ast.Starred) else argument
            )
            positional.append(None if starred else value)
        keywords: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self._evaluate(keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
        return positional, keywords

    def _passed(
        self, arguments: dict[str, Value], function: FunctionNode, node: ast.Call
    ) -> dict[str, Value]:
        where = self._module.where(node)
        return {
            name: stepped(value, f"{where}: passed to {function.name}() as {name}")
            for name, value in arguments.items()
        }
