"""Reading statements: names are bound, branches are read both ways, loops become parts of the trace."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Sequence
from typing import ClassVar

from unstuck.events import Place
from unstuck.lazy import pattern
from unstuck.source.flow import History
from unstuck.source.reader import knowledge
from unstuck.source.reader.assignments import Assignments
from unstuck.source.reader.expressions import find_method
from unstuck.source.reader.project import user_class
from unstuck.source.reader.scope import bind_import
from unstuck.source.trace import Block, Branch, Leave, Loop, condition_key
from unstuck.source.values import (
    UNKNOWN,
    Choice,
    Const,
    Group,
    Instance,
    Param,
    Parameters,
    Tensor,
    UserFunction,
    Value,
    alternatives,
    join,
)

MOST_LAYERS = 24
BATCH_WORDS = pattern(r"batch|data|sample|inputs?|images?|imgs?|labels?|targets?|^x$|^y$|^xb$|^yb$|tokens", re.I)


class Statements(Assignments):
    """The part of the reader that executes statements. `execute` tells whether control falls through."""

    def execute(self, body: Sequence[ast.stmt]) -> bool:
        """Read statements in order; False when control left before the end."""
        self.fuel -= len(body)
        for statement in body:
            read = self._statements.get(type(statement))
            if read is not None and read(self, statement) is False:
                return False
        return True

    def _expression(self, node: ast.Expr) -> None:
        self.statement = node.value
        value = self.evaluate(node.value)
        if isinstance(value, Instance) and value.last == "set_grad_enabled":
            self.grad_off, self.grad_unknown = self.recording_after(value, node.value, None, True)

    def _if(self, node: ast.If) -> bool:
        if _is_main_guard(node.test):
            return self.execute(node.body)
        if self._asks_for_gradient_of_cut(node.test):
            return self.execute(node.orelse)
        known = self.known(node.test)
        if known is not None:
            return self.execute(node.body if known else node.orelse)
        then: Block = []
        other: Block = []
        then_names, then_falls = self._read_branch(node.body, then)
        other_names, other_falls = self._read_branch(node.orelse, other)
        if then or other:
            condition, negated = condition_key(node.test)
            ways = (other, then) if negated else (then, other)
            self.block.append(Branch(condition, self._varies(node.test), *ways))
        if then_falls and other_falls:
            self.scope.names = _join_names(then_names, other_names)
        else:
            self.scope.names = other_names if other_falls else then_names
        return then_falls or other_falls

    def _asks_for_gradient_of_cut(self, test: ast.expr) -> bool:
        """`if loss.requires_grad:` where the loss was certainly cut off: that branch is not taken."""
        if not (isinstance(test, ast.Attribute) and test.attr == "requires_grad"):
            return False
        return History(self.evaluate(test.value)).detached

    def _is_settled(self, test: ast.expr) -> bool:
        """A literal, or what the arguments of this very call say: anything else constant now may change later."""
        if isinstance(test, ast.Compare):
            test = test.left
        if not isinstance(test, ast.Name):
            return isinstance(test, ast.Constant)
        settled = test.id in self.frame.parameters or test.id in self.frame.settled
        return settled and not any(test.id in _stored_names(loop) for loop in self.frame.loops)

    def _read_branch(self, body: Sequence[ast.stmt], block: Block) -> tuple[dict[str, Value], bool]:
        before = self.scope.names
        self.scope.names = dict(before)
        outer, self.block = self.block, block
        self.branch_depth += 1
        self.frame.branches += 1
        try:
            falls = self.execute(body)
            return self.scope.names, falls
        finally:
            self.branch_depth -= 1
            self.frame.branches -= 1
            self.block = outer
            self.scope.names = before

    def _varies(self, test: ast.expr) -> bool:
        changing = self.frame.parameters.union(*map(_stored_names, self.frame.loops))
        for part in ast.walk(test):
            if isinstance(part, ast.Name) and part.id in changing:
                return True
            if isinstance(part, ast.Attribute) and part.attr in changing:
                return True
            if isinstance(part, ast.Mod) or (isinstance(part, ast.Call) and not _is_type_test(part)):
                return True
        return False

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        iterated = self.evaluate(node.iter)
        layers = iterated.items if isinstance(iterated, Instance) and knowledge.is_module(iterated) else []
        if 1 < len(layers) <= MOST_LAYERS and self.forward_depth and self.fuel > 0:
            # `for layer in self.layers: x = layer(x)` is a chain: what comes out went through all of them, in order.
            for layer in layers[:-1]:
                self.assign(node.target, layer)
                self.execute(node.body)
            self._loop(node, lambda: self.assign(node.target, layers[-1]))
        else:
            self._loop(node, lambda: self.assign(node.target, self.each(iterated, node.target)))

    def _while(self, node: ast.While) -> None:
        self._loop(node, lambda: self.evaluate(node.test))

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, enter: Callable[[], object]) -> None:
        loop = Loop(node, self.place(node))
        self.frame.loops.append(node)
        self.loops.append(loop)
        with self.collecting(loop):
            enter()
            self.execute(node.body)
        self.loops.pop()
        self.frame.loops.pop()
        self.execute(node.orelse)

    def each(self, value: Value, target: ast.expr | None = None) -> Value:
        """One member of something iterated over; what a loader yields is data, without history."""
        result: Value | None = None
        for option in alternatives(value):
            one = self._one_of(option, target)
            result = one if result is None else join(result, one)
        return result or UNKNOWN

    def _one_of(self, value: Value, target: ast.expr | None) -> Value:
        if isinstance(value, Parameters):
            return Param(value.owner)
        if isinstance(value, Group | Instance) and value.items:
            joined = value.items[0]
            for item in value.items[1:]:
                joined = join(joined, item)
            return joined
        if isinstance(value, Instance) and value.last == "DataLoader":
            return _batch_of(value)
        if isinstance(value, Tensor):
            return Tensor("data", (value,))
        words = [part.id for part in ast.walk(target) if isinstance(part, ast.Name)] if target is not None else []
        return Tensor("data") if any(BATCH_WORDS.search(word) for word in words) else UNKNOWN

    def _with(self, node: ast.With | ast.AsyncWith) -> bool:
        off, unknown = self.grad_off, self.grad_unknown
        for item in node.items:
            value = self.evaluate(item.context_expr)
            if isinstance(value, Instance) and value.cls is not None and find_method(value.cls, "__enter__"):
                self.hide(item.context_expr, iter((value,)))
            off, unknown = self.recording_after(value, item.context_expr, off, unknown)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value if isinstance(value, Instance) else UNKNOWN)
        with self.recording(off, unknown):
            return self.execute(node.body)

    def recording_after(
        self, value: Value, node: ast.expr, off: Place | None, unknown: bool
    ) -> tuple[Place | None, bool]:
        """Whether gradients are recorded inside `with value:`."""
        if not isinstance(value, Instance):
            return off, unknown or "grad" in ast.unparse(node) or isinstance(value, Choice)
        if value.last in ("no_grad", "inference_mode"):
            always = not value.args and not value.kwargs
            return (self.place(node), False) if always or self._is_told(value, node, True) else (None, True)
        if value.last == "enable_grad":
            return None, False
        if value.last == "set_grad_enabled":
            return (self.place(node), False) if self._is_told(value, node, False) else (None, True)
        return off, unknown

    def _is_told(self, mode: Instance, node: ast.expr, wanted: bool) -> bool:
        """Is a switch of gradient recording certainly given this? A flag that is constant now may change later."""
        if not mode.args or not isinstance(node, ast.Call) or not node.args:
            return False
        told = mode.args[0]
        return isinstance(told, Const) and bool(told.value) is wanted and self._is_settled(node.args[0])

    def _try(self, node: ast.Try) -> bool:
        falls = self.execute(node.body) and self.execute(node.orelse)
        for handler in node.handlers:
            branch = Branch(f"exception at line {handler.lineno}", True)
            names, handler_falls = self._read_branch(handler.body, branch.then)
            if branch.then:
                self.block.append(branch)
            if handler_falls:
                self.scope.names = _join_names(self.scope.names, names)
            falls = falls or handler_falls
        return self.execute(node.finalbody) and falls

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.scope.names[node.name] = UserFunction(node, self.scope)

    def _class(self, node: ast.ClassDef) -> None:
        cls = user_class(node, self.scope, self.project)
        self.scope.names[node.name] = cls
        for statement in node.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                cls.assigned[statement.targets[0].id] = self.evaluate(statement.value)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        bind_import(node, self.scope)
        self.project.bind_star(node, self.scope)

    def _outer_names(self, node: ast.Global | ast.Nonlocal) -> None:
        for name in node.names:
            self.scope.names.setdefault(name, self.scope.get(name))

    def _match(self, node: ast.Match) -> bool:
        self.evaluate(node.subject)
        falls = True
        for case in node.cases:
            branch = Branch(f"case at line {case.pattern.lineno}", True)
            names, _ = self._read_branch(case.body, branch.then)
            self.scope.names = _join_names(self.scope.names, names)
            if branch.then:
                self.block.append(branch)
        return falls

    def _return(self, node: ast.Return) -> bool:
        self.frame.returned.append(self.evaluate(node.value) if node.value else Const(None))
        self.block.append(Leave("return"))
        return False

    def _leave(self, node: ast.Continue | ast.Break | ast.Raise) -> bool:
        self.block.append(Leave(type(node).__name__.lower()))
        return False

    _statements: ClassVar[dict[type[ast.stmt], Callable[..., bool | None]]] = {
        ast.Expr: _expression,
        ast.Assign: Assignments._assignment,
        ast.AnnAssign: Assignments._annotated,
        ast.AugAssign: Assignments._augmented,
        ast.If: _if,
        ast.For: _for,
        ast.AsyncFor: _for,
        ast.While: _while,
        ast.With: _with,
        ast.AsyncWith: _with,
        ast.Try: _try,
        ast.TryStar: _try,
        ast.FunctionDef: _function,
        ast.AsyncFunctionDef: _function,
        ast.ClassDef: _class,
        ast.Import: _import,
        ast.ImportFrom: _import,
        ast.Global: _outer_names,
        ast.Nonlocal: _outer_names,
        ast.Match: _match,
        ast.Delete: Assignments._delete,
        ast.Return: _return,
        ast.Continue: _leave,
        ast.Break: _leave,
        ast.Raise: _leave,
    }


def _batch_of(loader: Instance) -> Value:
    """What a loader yields: rows of the tensors of its dataset where those are known, else data."""
    dataset = loader.args[0] if loader.args else loader.kwargs.get("dataset", UNKNOWN)
    if isinstance(dataset, Instance) and dataset.last == "TensorDataset" and dataset.args:
        return Group([Tensor("batch", (tensor,), args=(loader,)) for tensor in dataset.args], is_tuple=True)
    return Tensor("data", args=(loader,))


def _join_names(one: dict[str, Value], other: dict[str, Value]) -> dict[str, Value]:
    joined = dict(one)
    for name, value in other.items():
        joined[name] = join(one[name], value) if name in one else value
    return joined


def _is_main_guard(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def _is_type_test(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in ("isinstance", "hasattr", "callable", "len", "bool")


@functools.lru_cache(maxsize=256)
def _stored_names(loop: ast.AST) -> set[str]:
    """Names and attributes assigned inside a loop, which may differ from one turn to the next."""
    stored: set[str] = set()
    for part in ast.walk(loop):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            stored.add(part.id)
        elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            stored.add(part.attr)
    return stored
