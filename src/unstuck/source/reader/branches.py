"""Branches: `if`, `a if c else b`, `match` and `try` are read both ways, unless the condition is known."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence

from unstuck.source.flow import History
from unstuck.source.nodes import parts_of
from unstuck.source.reader.reader import Reader, expression, statement
from unstuck.source.trace import Block, Branch, condition_key
from unstuck.source.values import UNKNOWN, Const, Instance, UserClass, Value, join, lineage, may_be_tensor

STEADY_CALLS = frozenset({"isinstance", "hasattr", "callable", "len", "bool"})
"""Builtins that give the same answer in every iteration if their argument does not change."""

ANY = "*"
"""In place of the name of an attribute that may be any."""


@statement(ast.If)
def if_statement(reader: Reader, node: ast.If) -> bool:
    """`if test: ... else: ...`."""
    test = node.test
    if isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__":
        return reader.execute(node.body)
    asked = test.value if isinstance(test, ast.Attribute) and test.attr == "requires_grad" else None
    if asked is not None and History(reader.evaluate(asked)).detached:
        # `if loss.requires_grad:` where the loss was certainly detached: that branch is not taken.
        return reader.execute(node.orelse)
    known = known_condition(reader, test)
    if known is not None:
        return reader.execute(node.body if known else node.orelse)
    then: Block = []
    other: Block = []
    doubted = _is_doubted(reader, test)
    then_names, then_falls = _read_branch(reader, node.body, then, doubted)
    other_names, other_falls = _read_branch(reader, node.orelse, other, doubted)
    _write_branch(reader, test, then, other)
    if then_falls and other_falls:
        reader.frame.scope.names = _join_names(then_names, other_names)
    else:
        names = other_names if other_falls else then_names
        reader.frame.scope.names = _without_tensors(names) if doubted else names
        # What follows is a branch too.
        reader.frame.doubted = reader.frame.doubted or doubted
    return then_falls or other_falls


@expression(ast.IfExp)
def conditional(reader: Reader, node: ast.IfExp) -> Value:
    """`a if test else b`."""
    known = known_condition(reader, node.test)
    if known is not None:
        return reader.evaluate(node.body if known else node.orelse)
    outer = reader.block
    values: list[Value] = []
    blocks: list[Block] = []
    try:
        for side in (node.body, node.orelse):
            reader.block = []
            values.append(reader.evaluate(side))
            blocks.append(reader.block)
    finally:
        reader.block = outer
    _write_branch(reader, node.test, *blocks)
    return UNKNOWN if _is_doubted(reader, node.test) else join(*values)


@statement(ast.Try, ast.TryStar)
def try_statement(reader: Reader, node: ast.Try | ast.TryStar) -> bool:
    """`try: ... except: ... finally: ...`."""
    falls = reader.execute(node.body) and reader.execute(node.orelse)
    for handler in node.handlers:
        branch = Branch(f"exception at line {handler.lineno}", True)
        names, handler_falls = _read_branch(reader, handler.body, branch.then)
        if branch.then:
            reader.block.append(branch)
        if handler_falls:
            reader.frame.scope.names = _join_names(reader.frame.scope.names, names)
        falls = falls or handler_falls
    return reader.execute(node.finalbody) and falls


@statement(ast.Match)
def match_statement(reader: Reader, node: ast.Match) -> None:
    """`match subject: ...`."""
    reader.evaluate(node.subject)
    for case in node.cases:
        branch = Branch(f"case at line {case.pattern.lineno}", True)
        names, _ = _read_branch(reader, case.body, branch.then)
        reader.frame.scope.names = _join_names(reader.frame.scope.names, names)
        if branch.then:
            reader.block.append(branch)


def _read_branch(
    reader: Reader, body: Sequence[ast.stmt], block: Block, doubted: bool = False
) -> tuple[dict[str, Value], bool]:
    """The names after a branch, and whether control reaches its end."""
    scope, frame = reader.frame.scope, reader.frame
    before, outer = scope.names, reader.block
    blurred = _without_tensors(before) if doubted else dict(before)
    returned = len(frame.returned)
    scope.names, reader.block = dict(blurred), block
    reader.branch_depth += 1
    frame.branches += 1
    try:
        falls = reader.execute(body)
        if doubted:
            frame.returned[returned:] = [UNKNOWN] * (len(frame.returned) - returned)
            set_here = {name for name, value in scope.names.items() if value is not blurred.get(name)}
            return before | dict.fromkeys(set_here, UNKNOWN), falls
        return scope.names, falls
    finally:
        reader.branch_depth -= 1
        frame.branches -= 1
        scope.names, reader.block = before, outer


def _without_tensors(names: dict[str, Value]) -> dict[str, Value]:
    return {name: UNKNOWN if may_be_tensor(value) else value for name, value in names.items()}


def _write_branch(reader: Reader, test: ast.expr, then: Block, other: Block) -> None:
    if then or other:
        condition, negated = condition_key(test)
        ways = (other, then) if negated else (then, other)
        reader.block.append(Branch(condition, _varies(reader, test), *ways))


def _join_names(one: dict[str, Value], other: dict[str, Value]) -> dict[str, Value]:
    return one | {name: join(one[name], value) if name in one else value for name, value in other.items()}


def known_condition(reader: Reader, test: ast.expr) -> bool | None:
    """Which way a condition certainly goes in this call, if that is known."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = known_condition(reader, test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        parts = [known_condition(reader, part) for part in test.values]
        decisive = isinstance(test.op, ast.Or)
        return decisive if decisive in parts else None if None in parts else not decisive
    value = reader.evaluate(test)
    return bool(value.value) if isinstance(value, Const) and is_settled(reader, test) else None


def is_settled(reader: Reader, test: ast.expr) -> bool:
    """A literal, or what the arguments of this very call say: anything else that is constant now may change later."""
    if isinstance(test, ast.Compare):
        test = test.left
    if isinstance(test, ast.Attribute) and isinstance(test.value, ast.Name):
        kept = _is_an_argument(reader.evaluate(test.value), test.attr)
        return kept and not _is_set_elsewhere(reader, test.attr)
    if not isinstance(test, ast.Name):
        return isinstance(test, ast.Constant)
    frame = reader.frame
    settled = test.id in frame.parameters or test.id in frame.settled
    return settled and not any(test.id in _stored_names(loop) for loop in frame.loops)


def _is_an_argument(owner: Value, name: str) -> bool:
    """Is the attribute what `__init__` was given for it, and does no other method of the class set it?"""
    if not isinstance(owner, Instance) or owner.cls is None:
        return False
    methods = [method for base in lineage(owner.cls) if isinstance(base, UserClass) for method in base.methods.values()]
    setters = [method for method in methods if name in _stored_names(method)]
    return len(setters) == 1 and setters[0].name == "__init__" and name in _kept_arguments(setters[0])


def _is_doubted(reader: Reader, test: ast.expr) -> bool:
    """Does it ask for an argument that `__init__` kept and other code may change?

    The model and its loss fit together whichever way it goes.
    """
    for part in parts_of(test):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            kept = _is_an_argument(reader.evaluate(part.value), part.attr)
            if kept and isinstance(reader.evaluate(part), Const) and _is_set_elsewhere(reader, part.attr):
                return True
    return False


def _is_set_elsewhere(reader: Reader, name: str) -> bool:
    """Does a file that was read set such an attribute outside of an `__init__`, or attributes of any name?"""
    project = reader.project
    for module in project.read[project.searched :]:
        if not module.attributes_set and module.tree is not None:
            module.attributes_set.append(_attributes_set(module.tree))
        project.attributes_set.update(*module.attributes_set)
    project.searched = len(project.read)
    return name in project.attributes_set or ANY in project.attributes_set


def _attributes_set(tree: ast.Module) -> frozenset[str]:
    """The attributes that a file sets, without those that an `__init__` sets of its own object."""
    parts = list(parts_of(tree))
    own = {
        id(part)
        for method in parts
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
        for part in parts_of(method)
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self"
    }
    found: set[str] = set()
    for part in parts:
        if isinstance(part, ast.Attribute) and not isinstance(part.ctx, ast.Load) and id(part) not in own:
            found.add(part.attr)
        elif isinstance(part, ast.Call) and _last_part(part.func) in ("setattr", "__setattr__"):
            names = [argument.value for argument in part.args if isinstance(argument, ast.Constant)]
            found |= {name for name in names[:1] if isinstance(name, str)} or {ANY}
        elif _changes_dict(part):
            found.add(ANY)
    return frozenset(found)


def _changes_dict(part: ast.AST) -> bool:
    """`vars(model).update(...)`, `model.__dict__["a"] = b`, or `a = vars(model)`, with which anything may be done."""
    if isinstance(part, ast.Attribute) and part.attr in ("update", "setdefault", "pop", "clear"):
        return _is_dict(part.value)
    if isinstance(part, ast.Subscript) and not isinstance(part.ctx, ast.Load):
        return _is_dict(part.value)
    if isinstance(part, ast.Attribute) and part.attr == "__dict__" and not isinstance(part.ctx, ast.Load):
        return True
    return isinstance(part, ast.Assign | ast.AugAssign | ast.NamedExpr) and _is_dict(part.value)


def _is_dict(node: ast.expr) -> bool:
    called = isinstance(node, ast.Call) and _last_part(node.func) == "vars"
    return called or (isinstance(node, ast.Attribute) and node.attr == "__dict__")


def _last_part(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


@functools.lru_cache(maxsize=256)
def _kept_arguments(method: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    """`sigmoid` of `self.sigmoid = sigmoid`."""
    kept = set()
    for node in method.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            kept |= {target.attr for target in node.targets if isinstance(target, ast.Attribute)}
    return frozenset(kept & {part.arg for part in (*method.args.args, *method.args.kwonlyargs)})


def _varies(reader: Reader, test: ast.expr) -> bool:
    """May a condition change from one iteration to the next?"""
    changing = reader.frame.parameters.union(*map(_stored_names, reader.frame.loops))
    for part in parts_of(test):
        if isinstance(part, ast.Name) and part.id in changing:
            return True
        if isinstance(part, ast.Attribute) and part.attr in changing:
            return True
        if isinstance(part, ast.Mod):
            return True
        if isinstance(part, ast.Call) and not (isinstance(part.func, ast.Name) and part.func.id in STEADY_CALLS):
            return True
    return False


@functools.lru_cache(maxsize=256)
def _stored_names(loop: ast.AST) -> set[str]:
    """Names and attributes assigned inside a loop, which may differ from one iteration to the next."""
    stored: set[str] = set()
    for part in parts_of(loop):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            stored.add(part.id)
        elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            stored.add(part.attr)
    return stored
