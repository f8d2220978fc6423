"""Definitions: `def`, `lambda`, `class`, `import` and `global`, and what a function gives back: `return`, `yield`."""

from __future__ import annotations

import ast

from unstuck.source.reader.project import user_class
from unstuck.source.reader.reader import Reader, expression, statement
from unstuck.source.reader.scope import bind_import
from unstuck.source.trace import Exit, Leave
from unstuck.source.values import UNKNOWN, Const, UserFunction, Value


@statement(ast.FunctionDef, ast.AsyncFunctionDef)
def function_definition(reader: Reader, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """`def train(model): ...`."""
    scope = reader.frame.scope
    scope.names[node.name] = UserFunction(node, scope)


@expression(ast.Lambda)
def lambda_expression(reader: Reader, node: ast.Lambda) -> Value:
    """`lambda x: x + 1`."""
    return UserFunction(node, reader.frame.scope)


@statement(ast.ClassDef)
def class_definition(reader: Reader, node: ast.ClassDef) -> None:
    """`class Net(nn.Module): ...`."""
    scope = reader.frame.scope
    scope.names[node.name] = cls = user_class(node, scope, reader.project)
    for item in node.body:
        if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
            cls.assigned[item.targets[0].id] = reader.evaluate(item.value)


@statement(ast.Import, ast.ImportFrom)
def import_statement(reader: Reader, node: ast.Import | ast.ImportFrom) -> None:
    """`from torch import nn`."""
    bind_import(node, reader.frame.scope)
    reader.project.bind_star(node, reader.frame.scope)


@statement(ast.Global, ast.Nonlocal)
def outer_names(reader: Reader, node: ast.Global | ast.Nonlocal) -> None:
    """`global model`: reading finds the outer value, but an assignment does not change it."""
    scope = reader.frame.scope
    for name in node.names:
        scope.names.setdefault(name, reader.look_up(name))


@statement(ast.Return)
def return_statement(reader: Reader, node: ast.Return) -> bool:
    """`return loss`."""
    value = reader.evaluate(node.value) if node.value else Const(None)
    reader.facts.returned.append(value)
    reader.frame.returned.append(UNKNOWN if reader.frame.doubted else value)
    reader.block.append(Leave(Exit.RETURN))
    return False


@expression(ast.Yield)
def yield_expression(reader: Reader, node: ast.Yield) -> Value:
    """`yield batch`."""
    if node.value is not None:
        reader.frame.yielded.append(reader.evaluate(node.value))
    return UNKNOWN
