"""The order of one function body: what runs after what, and under which conditions."""

import ast

from patches.audit.conditions import Accepts, negate, parts_of
from patches.audit.expressions import Expressions
from patches.audit.modules import FunctionNode
from patches.audit.syntax import call_shape, catches_attribute_error, plain_assignments, short
from patches.audit.values import Models, SpeculatorSelf, merged, union


class Activation(Expressions):
    """The interpretation of one function body."""

    def run(self, function: FunctionNode) -> None:
        self._block(function.body)

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

    def _part(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            self._statement(node)
        else:
            super()._part(node)

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
