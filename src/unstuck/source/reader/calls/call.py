"""`f(x)`: the arguments are read, the call is noted, and the file for what is called decides what it does."""

from __future__ import annotations

import ast
from functools import reduce

from unstuck.source.facts import Called
from unstuck.source.reader.reader import Call, Reader, expression
from unstuck.source.reader.scope import dotted
from unstuck.source.values import MOST_ITEMS, UNKNOWN, Choice, Group, Instance, Method, Symbol, Value, join


@expression(ast.Call)
def call_expression(reader: Reader, node: ast.Call) -> Value:
    """`f(x)`, where `f` may be one of several values."""
    discarded, reader.discarded = reader.discarded is node, None
    function = reader.evaluate(node.func)
    args: list[Value] = []
    for argument in node.args:
        value = reader.evaluate(argument)
        if isinstance(argument, ast.Starred):
            args.extend(value.items[: MOST_ITEMS - len(args)] if isinstance(value, Group) else [UNKNOWN])
        else:
            args.append(value)
    kwargs = {item.arg: reader.evaluate(item.value) for item in node.keywords if item.arg}
    call = Call(node, tuple(args), kwargs)
    called = _note(reader, function, call, discarded)
    if isinstance(function, Choice):
        called.result = reduce(join, [reader.call(option, call) for option in function.options])
    else:
        called.result = reader.call(function, call)
    return called.result


def _note(reader: Reader, function: Value, call: Call, discarded: bool) -> Called:
    receiver, name = None, ""
    if isinstance(function, Symbol):
        name = function.name
    elif isinstance(function, Method):
        receiver, name = function.receiver, f".{function.name}"
    elif isinstance(function, Instance):
        receiver = function
    frame = reader.frame
    called = Called(
        name=name or dotted(call.node.func),
        node=call.node,
        source=frame.source,
        args=call.args,
        kwargs=call.kwargs,
        result=UNKNOWN,
        receiver=receiver,
        loops=tuple(reader.loops),
        discarded=discarded,
        recording=reader.grad_off is None,
        function=frame.function,
        owner=frame.owner,
        time=reader.tick(),
    )
    reader.facts.calls.append(called)
    return called
