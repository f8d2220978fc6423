"""Expressions: literals, names, operators, subscripts, lists, dicts and comprehensions."""

from __future__ import annotations

import ast
from functools import reduce

from unstuck.source.reader.assignments import assign_member
from unstuck.source.reader.iteration import each
from unstuck.source.reader.reader import Reader, expression, statement
from unstuck.source.reader.with_blocks import recording_after
from unstuck.source.values import (
    UNKNOWN,
    Const,
    Group,
    Instance,
    Param,
    Parameters,
    Tensor,
    UserClass,
    UserFunction,
    Value,
    alternatives,
    join,
    may_be_tensor,
)


@statement(ast.Expr)
def expression_statement(reader: Reader, node: ast.Expr) -> None:
    """An expression on its own; `torch.set_grad_enabled(False)` is a switch without a block."""
    reader.discarded = node.value
    value = reader.evaluate(node.value)
    if isinstance(value, Instance) and value.last == "set_grad_enabled":
        reader.grad_off, reader.grad_unknown = recording_after(reader, value, node.value, None, True)


@expression(ast.Constant)
def constant(reader: Reader, node: ast.Constant) -> Value:
    """`0.1`, `"mean"`, `None`."""
    return Const(node.value)


@expression(ast.Name)
def name(reader: Reader, node: ast.Name) -> Value:
    """`model`."""
    return reader.look_up(node.id)


@expression(ast.BinOp)
def arithmetic(reader: Reader, node: ast.BinOp) -> Value:
    """`a + b`."""
    left, right = reader.evaluate(node.left), reader.evaluate(node.right)
    both_lists = isinstance(left, Group | Parameters) and isinstance(right, Group | Parameters)
    if both_lists and isinstance(node.op, ast.Add):
        # `list(a.parameters()) + [b]`
        sides = [side if isinstance(side, Group) else Group([side]) for side in (left, right)]
        items = [item for side in sides for item in side.items]
        return Group(items, all(side.complete for side in sides), place=sides[0].place)
    if may_be_tensor(left) or may_be_tensor(right):
        return reader.tensor(type(node.op).__name__.lower(), (left, right), node)
    return UNKNOWN


@expression(ast.UnaryOp)
def unary(reader: Reader, node: ast.UnaryOp) -> Value:
    """`-a`, `not a`."""
    value = reader.evaluate(node.operand)
    if isinstance(node.op, ast.USub) and isinstance(value, Const) and isinstance(value.value, int | float):
        return Const(-value.value)
    return reader.tensor("neg", (value,), node) if may_be_tensor(value) else UNKNOWN


@expression(ast.Compare)
def comparison(reader: Reader, node: ast.Compare) -> Value:
    """`a < b`, `a is None`."""
    values = tuple(reader.evaluate(part) for part in (node.left, *node.comparators))
    if any(map(may_be_tensor, values)):
        return reader.tensor("compare", values, node, "a comparison")
    if values[1:] == (Const(None),) and isinstance(node.ops[0], ast.Is | ast.IsNot):
        wanted, value = isinstance(node.ops[0], ast.Is), values[0]
        if isinstance(value, Const):
            return Const((value.value is None) == wanted)
        return Const(not wanted) if isinstance(value, Instance | UserClass | UserFunction) else UNKNOWN
    return UNKNOWN


@expression(ast.BoolOp)
def either(reader: Reader, node: ast.BoolOp) -> Value:
    """`a and b`, `a or b`."""
    return reduce(join, [reader.evaluate(part) for part in node.values])


@expression(ast.Subscript)
def subscript(reader: Reader, node: ast.Subscript) -> Value:
    """`a[0]`."""
    base, index = reader.evaluate(node.value), reader.evaluate(node.slice)
    return reduce(join, [_item(reader, option, index, node) for option in alternatives(base)])


def _item(reader: Reader, base: Value, index: Value, node: ast.Subscript) -> Value:
    if isinstance(base, Tensor):
        return reader.tensor("getitem", (base,), node)
    if isinstance(base, Parameters):
        return Parameters(base.owner, base.only_trainable, partial=True)
    key = index.value if isinstance(index, Const) else None
    if isinstance(base, Group):
        if base.keys is not None:
            return base.items[base.keys.index(key)] if key in base.keys else UNKNOWN
        if not base.complete:
            return UNKNOWN
    if isinstance(base, Group | Instance) and isinstance(key, int) and -len(base.items) <= key < len(base.items):
        return base.items[key]
    if isinstance(base, Instance) and base.is_part:
        return Instance(base.kind, base.place, parent=base, fresh=False, label=str(key), is_part=True)
    return UNKNOWN


@expression(ast.List, ast.Tuple, ast.Set)
def collection(reader: Reader, node: ast.List | ast.Tuple | ast.Set) -> Value:
    """`[a, *b]`."""
    items: list[Value] = []
    complete = True
    for element in node.elts:
        if not isinstance(element, ast.Starred):
            items.append(reader.evaluate(element))
            continue
        inner = reader.evaluate(element.value)
        items.extend(inner.items if isinstance(inner, Group) else [each(inner)])
        complete = complete and isinstance(inner, Group) and inner.complete
    return Group(items, complete, place=reader.place(node))


@expression(ast.Dict)
def dictionary(reader: Reader, node: ast.Dict) -> Value:
    """`{"params": a}`."""
    keys = [reader.evaluate(key) if key else UNKNOWN for key in node.keys]
    items = [reader.evaluate(value) for value in node.values]
    constants = [key.value for key in keys if isinstance(key, Const)]
    complete = len(constants) == len(keys)
    return Group(items, complete, keys=constants if complete else None, place=reader.place(node))


@expression(ast.ListComp, ast.SetComp, ast.GeneratorExp)
def comprehension(reader: Reader, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
    """`[p for p in model.parameters() if p.requires_grad]`."""
    _bind_generators(reader, node.generators)
    element = reader.evaluate(node.elt)
    if isinstance(element, Param):
        conditions = [ast.unparse(test) for generator in node.generators for test in generator.ifs]
        only_trainable = bool(conditions) and all("requires_grad" in text for text in conditions)
        return Parameters(element.owner, only_trainable, bool(conditions) and not only_trainable)
    return Group([element], complete=False, place=reader.place(node))


@expression(ast.DictComp)
def dict_comprehension(reader: Reader, node: ast.DictComp) -> Value:
    """`{name: p for name, p in model.named_parameters()}`."""
    _bind_generators(reader, node.generators)
    reader.evaluate(node.key)
    return Group([reader.evaluate(node.value)], complete=False, place=reader.place(node))


def _bind_generators(reader: Reader, generators: list[ast.comprehension]) -> None:
    for generator in generators:
        assign_member(reader, generator.target, reader.evaluate(generator.iter), generator.iter)


@expression(ast.Await, ast.Starred, ast.YieldFrom)
def inner_value(reader: Reader, node: ast.Await | ast.Starred | ast.YieldFrom) -> Value:
    """`await a`, `*a`, `yield from a`."""
    return reader.evaluate(node.value)
