"""Questions about a piece of the user's text: the loop around a line, and the names it carries or changes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While


def function_at(tree: ast.Module, line: int) -> Scope:
    """The innermost function that this line belongs to, or else the whole file."""
    found: Scope = tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _covers(node, line):
            found = node
    return found


def loops_around(tree: ast.Module, line: int) -> list[Loop]:
    """The loops of the line's own function around it, innermost first."""
    loops = [node for node in ast.walk(function_at(tree, line)) if isinstance(node, Loop) and _covers(node, line)]
    return loops[::-1]


def _covers(node: ast.stmt, line: int) -> bool:
    first: int = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", ()))])
    return first <= line <= (node.end_lineno or first)


def names_carried(loop: Loop) -> dict[str, ast.stmt]:
    """Names that the loop computes from their own last value only: `out, h = rnn(x, h)`, `total += loss`."""
    carried: dict[str, ast.stmt] = {}
    fresh: set[str] = set()
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign):
            carried |= dict.fromkeys(_names([node.target]), node)
        elif isinstance(node, ast.Assign):
            read = {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
            carried |= {name: node for name in _names(node.targets) if name in read}
            fresh |= set(_names(node.targets)) - read
        elif isinstance(node, ast.For | ast.AsyncFor):
            fresh |= set(_names([node.target]))
    return {name: statement for name, statement in carried.items() if name not in fresh}


def reads_attribute(scope: ast.AST, name: str) -> bool:
    """Is `self.name` read here?"""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.ctx, ast.Load)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        for node in ast.walk(scope)
    )


def names_assigned(scope: ast.AST) -> dict[str, ast.stmt]:
    """Every name that is assigned, with the statement that does it last."""
    found: dict[str, ast.stmt] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            found |= dict.fromkeys(_names(node.targets), node)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For):
            found |= dict.fromkeys(_names([node.target]), node)
    return found


def changes_in(scope: ast.AST) -> list[tuple[str, ast.stmt | ast.expr]]:
    """Statements that change a variable in place: `x += 1`, `x[0] = 1`, `x.mul_(2)`, `F.relu(x, inplace=True)`."""
    numbers = {
        name
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for name in _names(node.targets)
    }
    found = [pair for node in ast.walk(scope) for pair in _change(node)]
    return [(name, node) for name, node in found if name not in numbers]


def _change(node: ast.AST) -> Iterator[tuple[str, ast.stmt | ast.expr]]:
    if isinstance(node, ast.AugAssign):
        yield _root(node.target), node
    elif isinstance(node, ast.Assign):
        yield from ((_root(target), node) for target in node.targets if isinstance(target, ast.Subscript))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        word = node.func.attr
        given = _root(node.args[0]) if node.args else ""
        if any(keyword.arg == "inplace" and _is_true(keyword.value) for keyword in node.keywords) and given:
            yield given, node
        elif word.endswith("_") and not word.endswith("__") and word != "requires_grad_":
            owner = _root(node.func.value)
            yield (given if owner in ("F", "torch", "nn") and given else owner), node


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _root(node: ast.expr) -> str:
    """`x` of `x[0]`, `x.data` and `x`."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _names(targets: list[ast.expr]) -> list[str]:
    return [
        node.id
        for target in targets
        for node in ast.walk(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
