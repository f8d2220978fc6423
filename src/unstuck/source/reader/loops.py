"""Loops: `for` and `while` become parts of the trace; `break`, `continue`, `return` and `raise` leave them."""

from __future__ import annotations

import ast
from collections.abc import Callable

from unstuck.source.reader import knowledge
from unstuck.source.reader.assignments import assign, assign_member
from unstuck.source.reader.reader import Reader, statement
from unstuck.source.trace import Exit, Leave, Loop
from unstuck.source.values import Instance

MOST_UNROLLED_LAYERS = 24


@statement(ast.For, ast.AsyncFor)
def for_loop(reader: Reader, node: ast.For | ast.AsyncFor) -> None:
    """`for x, y in loader: ...`."""
    iterated = reader.evaluate(node.iter)
    layers = iterated.items if isinstance(iterated, Instance) and knowledge.is_module(iterated) else []
    if 1 < len(layers) <= MOST_UNROLLED_LAYERS and reader.forward_depth and reader.statements_left > 0:
        # `for layer in self.layers: x = layer(x)` is a chain: what comes out went through all of them, in order.
        for layer in layers[:-1]:
            assign(reader, node.target, layer)
            reader.execute(node.body)
        _loop(reader, node, lambda: assign(reader, node.target, layers[-1]))
    else:
        _loop(reader, node, lambda: assign_member(reader, node.target, iterated, node.iter))


@statement(ast.While)
def while_loop(reader: Reader, node: ast.While) -> None:
    """`while test: ...`."""
    _loop(reader, node, lambda: reader.evaluate(node.test))


def _loop(reader: Reader, node: ast.For | ast.AsyncFor | ast.While, enter: Callable[[], object]) -> None:
    loop = Loop(node, reader.place(node))
    reader.frame.loops.append(node)
    reader.loops.append(loop)
    with reader.collecting(loop):
        enter()
        reader.execute(node.body)
    reader.loops.pop()
    reader.frame.loops.pop()
    reader.execute(node.orelse)


@statement(ast.Continue, ast.Break, ast.Raise)
def leave(reader: Reader, node: ast.Continue | ast.Break | ast.Raise) -> bool:
    """`continue`, `break`, `raise`."""
    reader.block.append(Leave(Exit(type(node).__name__.lower())))
    return False
