"""The data flow of model reads: which attributes one speculator class reads off its models.

A speculator's methods are interpreted abstractly. The only values followed are references to the
draft or target model (and what hangs below them), the speculator itself, and constant strings;
everything else is unknown. Each function and binding of its arguments becomes one `Frame`; frames
are joined by `CallEdge`s, so that the condition a read stands under can be put together along the
way that leads to it.
"""

import ast
from collections.abc import Iterator
from contextlib import contextmanager

from patches.audit.classes import CallShape, ClassLibrary, ClassModel, is_property
from patches.audit.conditions import (
    DRAFT,
    TARGET,
    Accepts,
    Condition,
    Constant,
    Not,
    NotNone,
    Provides,
    negate,
    parts_of,
)
from patches.audit.modules import FUNCTIONS, FunctionNode, Module
from patches.audit.readgraph import CALL, CallEdge, Frame, Kind, Read, ReadGraph, Validation
from patches.audit.scope import MODEL_SLOT, Scope
from patches.audit.syntax import (
    bind,
    call_shape,
    catches_attribute_error,
    is_static,
    loads_model,
    mentioned,
    plain_assignments,
    short,
)
from patches.audit.values import (
    Models,
    Reference,
    SpeculatorSelf,
    Strings,
    Value,
    choice,
    merged,
    stepped,
    strings_of,
    union,
)

_TARGET_PARAMETERS = frozenset({"target_model"})
_FOLLOWED = (
    "vllm.v1.",
    "vllm.model_executor.models.interfaces",
    "vllm.model_executor.models.utils",
)
"""Modules whose functions are entered when a model is passed to them."""
_SPECULATOR_CODE = ("vllm.v1.spec_decode", "vllm.v1.worker.gpu.spec_decode")
_CONTRACT = ((), ("model",))
"""Whose attributes are audited: the model's and those of its ``model``. What hangs deeper (an
embedding's weight, a field of a config) belongs to classes that all platforms share."""
_ALWAYS_RUN = ("__init__", "load_model")  # in this order, before everything else
_MAX_DEPTH = 30  # calls; deeper is recursion


def read_graph(
    speculator: ClassModel, library: ClassLibrary, entry_points: frozenset[str]
) -> ReadGraph:
    """Interpret a speculator class; the runner calls those of `entry_points` that it has."""
    return _Interpreter(speculator, library, entry_points).run()


class _Interpreter:
    """Interprets the methods of one speculator class."""

    def __init__(
        self, speculator: ClassModel, library: ClassLibrary, entry_points: frozenset[str]
    ) -> None:
        self.speculator = speculator
        self.entry_points = entry_points - set(_ALWAYS_RUN)
        self.library = library
        self.frames: dict[tuple[object, ...], Frame] = {}
        self.attributes: dict[str, Models] = {}
        self.flags: dict[str, list[Condition]] = {}
        self.flag_sources: dict[str, set[str]] = {}
        self.probes: dict[str, list[Condition]] = {}
        self.depth = 0

    def run(self) -> ReadGraph:
        self._note_class_attributes()
        roots = []
        for name in (*_ALWAYS_RUN, *sorted(self.entry_points)):
            method = self.speculator.find_method(name)
            if method is not None:
                owner, function = method
                roots.append(self.enter_method(owner, function, self._entry_arguments(function)))
        return ReadGraph(self.speculator, roots, self.flags, self.flag_sources, self.probes)

    def enter_method(
        self, owner: ClassModel, function: FunctionNode, arguments: dict[str, Value]
    ) -> Frame:
        """Interpret a method of the speculator with some of its parameters bound."""
        if not is_static(function) and function.args.args:
            arguments = {function.args.args[0].arg: SpeculatorSelf(), **arguments}
        return self.enter(owner.module, function, arguments, owner)

    def enter(
        self,
        module: Module,
        function: FunctionNode,
        arguments: dict[str, Value],
        owner: ClassModel | None,
    ) -> Frame:
        """Interpret a function once for each binding of its parameters."""
        bound = tuple(sorted(arguments.items(), key=lambda item: item[0]))
        key = (id(function), owner.key if owner else None, bound)
        if key not in self.frames:
            name = f"{owner.name}.{function.name}" if owner else function.name
            frame = self.frames[key] = Frame(name)
            if self.depth < _MAX_DEPTH:
                self.depth += 1
                _Activation(self, frame, module, owner, arguments).run(function)
                self.depth -= 1
        return self.frames[key]

    def draft_model(self, where: str) -> Models:
        """What ``self.model`` is: the draft model, with the history of how it got there."""
        start = Reference(DRAFT, (), origin=(f"{where}: self.model holds the draft model",))
        return self.attributes.get(MODEL_SLOT, Models((start,)))

    def note_flag(self, name: str, value: Condition, expression: ast.expr) -> None:
        """Remember what the speculator assigns to one of its own attributes."""
        self.flags.setdefault(name, []).append(value)
        self.flag_sources.setdefault(name, set()).update(mentioned(expression))

    def _note_class_attributes(self) -> None:
        for cls in reversed(self.speculator.mro):
            for name in cls.class_attribute_names():
                value = cls.class_values(name)[:1]
                if value and isinstance(value[0][1], ast.Constant):
                    constant = value[0][1]
                    self.note_flag(
                        name, Constant(ast.unparse(constant), bool(constant.value)), constant
                    )

    def _entry_arguments(self, function: FunctionNode) -> dict[str, Value]:
        names = [parameter.arg for parameter in function.args.args]
        origin = (f"{function.name}() is given the target model by the runner",)
        target = Models((Reference(TARGET, (), origin=origin),))
        return {name: target for name in names if name in _TARGET_PARAMETERS}


class _Activation(Scope):
    """The interpretation of one function body."""

    def __init__(
        self,
        interpreter: _Interpreter,
        frame: Frame,
        module: Module,
        owner: ClassModel | None,
        arguments: dict[str, Value],
    ) -> None:
        super().__init__(interpreter, module, arguments)
        self._interpreter = interpreter
        self._frame = frame
        self._owner = owner
        self._conditions: list[Condition] = []
        self._soft = 0

    def run(self, function: FunctionNode) -> None:
        self._block(function.body)

    # Statements ---------------------------------------------------------------------------------

    def _block(self, body: list[ast.stmt]) -> bool:
        """Interpret statements in order; return whether the block surely leaves its parent."""
        depth = len(self._conditions)
        ended = False
        for node in body:
            if self._statement(node):
                ended = True
                break
        del self._conditions[depth:]
        return ended

    def _statement(self, node: ast.stmt) -> bool:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._block(node.body)
            case ast.Import() | ast.ImportFrom():
                self._imports.update(self._module.imports(node))
            case ast.If():
                return self._if(node)
            case ast.For() | ast.AsyncFor():
                self._for(node)
            case ast.While():
                self._evaluate(node.test)
                self._block(node.body)
                self._block(node.orelse)
            case ast.Match():
                self._evaluate(node.subject)
                for case in node.cases:
                    self._block(case.body)
            case ast.Try():
                return self._try(node)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    value = self._evaluate(item.context_expr)
                    if item.optional_vars is not None:
                        self._assign(item.optional_vars, value, item.context_expr)
                return self._block(node.body)
            case ast.Return(value=value):
                if value is not None:
                    self._frame.returns = union(self._frame.returns, self._evaluate(value))
                return True
            case ast.Raise():
                self._children(node)
                self._note_validations(node)
                return True
            case ast.Continue() | ast.Break():
                return True
            case ast.Assign(targets=targets, value=value):
                found = self._evaluate(value)
                for target in targets:
                    self._assign(target, found, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self._evaluate(value), value)
            case ast.Delete(targets=targets):
                for target in targets:
                    if isinstance(target, ast.Attribute):
                        self._read(self._evaluate(target.value), target.attr, target)
            case _:
                self._children(node)
        return False

    def _children(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self._statement(child)
            elif isinstance(child, ast.expr):
                self._evaluate(child)
            else:
                self._children(child)

    def _if(self, node: ast.If) -> bool:
        self._evaluate(node.test)
        condition = self.condition(node.test)
        before, tests_before = dict(self._values), dict(self._tests)
        with self._under(condition):
            left = self._block(node.body)
        after_body, self._values = self._values, before
        tests_after_body, self._tests = self._tests, tests_before
        with self._under(negate(condition)):
            right = self._block(node.orelse)
        if left and right:
            return True
        if left:  # what follows runs only when the test failed
            self._conditions += parts_of(negate(condition))
        elif right:
            self._values, self._tests = after_body, tests_after_body
            self._conditions += parts_of(condition)
        else:
            self._values = merged(after_body, self._values, condition)
            same = self._tests.items() & tests_after_body.items()
            self._tests = dict(same)
        return False

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        self._evaluate(node.iter)
        self._assign(node.target, self._element(node.iter), node.iter)
        self._block(node.body)
        self._block(node.orelse)

    def _try(self, node: ast.Try) -> bool:
        catches = any(catches_attribute_error(handler.type) for handler in node.handlers)
        self._soft += catches
        ended = self._block(node.body)
        self._soft -= catches
        for handler in node.handlers:
            self._block(handler.body)
            if catches_attribute_error(handler.type):
                self._note_probes(node.body, handler.body)
        self._block(node.orelse)
        return self._block(node.finalbody) or (ended and not node.handlers)

    def _note_probes(self, tried: list[ast.stmt], handler: list[ast.stmt]) -> None:
        """Remember ``self.flag = False`` in the handler of a call that the model may not take."""
        cleared = [
            attr
            for statement in handler
            for target, value in plain_assignments(statement)
            if isinstance(value, ast.Constant) and not value.value
            for attr in [self._own_attribute(target)]
            if attr is not None
        ]
        for attr in cleared:
            for node in (inner for statement in tried for inner in ast.walk(statement)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    holder = self.quietly(node.func.value)
                    for reference in holder.references if isinstance(holder, Models) else ():
                        path = (*reference.path, node.func.attr)
                        taken = Accepts(short(node), reference.role, path, call_shape(node))
                        self._interpreter.probes.setdefault(attr, []).append(taken)

    def _own_attribute(self, target: ast.expr) -> str | None:
        if isinstance(target, ast.Attribute):
            holder = self.quietly(target.value)
            return target.attr if isinstance(holder, SpeculatorSelf) else None
        return None

    def _note_validations(self, node: ast.Raise) -> None:
        for position, condition in enumerate(self._conditions):
            missing = condition.inner if isinstance(condition, Not) else None
            if isinstance(missing, Provides | NotNone):
                others = tuple(self._conditions[:position] + self._conditions[position + 1 :])
                where = self._module.where(node)
                self._frame.validations.append(
                    Validation(missing.role, missing.path, where, others)
                )

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

    # Expressions --------------------------------------------------------------------------------

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

    # Calls --------------------------------------------------------------------------------------

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

    def _called(self, frame: Frame, node: ast.expr) -> Value:
        where = self._module.where(node)
        self._frame.calls.append(CallEdge(frame, tuple(self._conditions), where, bool(self._soft)))
        return frame.returns

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

    # Recording ----------------------------------------------------------------------------------

    def _read(self, owner: Value, attr: str, node: ast.expr) -> Value:
        if not isinstance(owner, Models):
            return None
        self._record(owner, attr, Kind.REQUIRED, node)
        return Models(tuple(reference.attribute(attr) for reference in owner.references))

    def _record(
        self, owner: Value, attr: str, kind: Kind, node: ast.expr, call: CallShape | None = None
    ) -> None:
        if not isinstance(owner, Models):
            return
        if self._soft and kind is Kind.REQUIRED:
            kind = Kind.OPTIONAL
        for reference in owner.references:
            if reference.path not in _CONTRACT:
                continue
            self._frame.reads.append(
                Read(
                    reference.role,
                    (*reference.path, attr),
                    kind,
                    self._module.where(node),
                    self._frame.name,
                    (*self._conditions, *reference.when),
                    reference.origin,
                    call,
                )
            )

    @contextmanager
    def _under(self, condition: Condition) -> Iterator[None]:
        depth = len(self._conditions)
        self._conditions += parts_of(condition)
        yield
        del self._conditions[depth:]

    def _step(self, target: ast.expr, expression: ast.expr) -> str:
        return f"{self._module.where(target)}: {ast.unparse(target)} = {short(expression)}"
