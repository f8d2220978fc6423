"""Calls of the user's own functions and methods: their bodies are read with the arguments of the call."""

from __future__ import annotations

import ast
from functools import reduce

from unstuck.events import Place
from unstuck.source.reader import knowledge
from unstuck.source.reader.abilities import ability_of, reachable
from unstuck.source.reader.calls.repeated import again, effects, is_harmless, kept, key_of, same_around
from unstuck.source.reader.reader import Call, Frame, Reader, Repeatable, callee
from unstuck.source.reader.scope import Scope, dotted
from unstuck.source.trace import NOTHING, Inlined
from unstuck.source.values import UNKNOWN, Const, Group, Symbol, UserFunction, Value, join

NO_GRAD = (Symbol("torch.no_grad"), Symbol("torch.inference_mode"))


@callee(UserFunction)
def user_function(reader: Reader, function: UserFunction, call: Call) -> Value:
    """`train(model)`."""
    return call_function(reader, function, call.args, call.kwargs)


def call_function(reader: Reader, function: UserFunction, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
    """Read a function of the user's with these arguments."""
    node, owner = function.node, function.owner
    reader.functions_read.add(node)
    name = getattr(node, "name", "<lambda>")
    if owner is not None and name != "__init__" and knowledge.is_optimizer(owner):
        # An optimizer that the user wrote may step, clear and back-propagate in any order.
        reader.hide(node, (owner, *args), anywhere=False)
        return UNKNOWN
    stack = reader.call_stack
    if stack and function.defined_in is not None and function.defined_in.node.name in knowledge.MODULE_BASES:
        return UNKNOWN  # What a framework's own base class of models does is known: it trains nothing.
    if node in stack or len(stack) >= reader.deepest_call or reader.statements_left <= 0:
        can = NOTHING
        if stack:
            can = reader.ability_unread(function, _by_name(function, args, kwargs))
        for value in reachable((*args, *kwargs.values())):
            # A function that it is given may be called, and a network that it is given may be any.
            can |= ability_of(value) if isinstance(value, UserFunction) else NOTHING
        if can:
            reader.hide(node, (*args, *kwargs.values()), can)
        return UNKNOWN
    key = key_of(reader, function, args, kwargs)
    known = reader.harmless.get(key) if key is not None else None
    if known is not None and same_around(known.outside):
        reader.outside += known.outside
        return again(known.value)
    found, called, looked_up = effects(reader), len(reader.facts.calls), len(reader.outside)
    value = _read(reader, function, args, kwargs)
    if key is not None and reader.statements_left > 0 and is_harmless(reader, value, found, called):
        outside = kept(reader.outside[looked_up:])
        if outside is not None:
            reader.harmless[key] = Repeatable(function, again(value), outside)
    return value


def _read(reader: Reader, function: UserFunction, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
    node, owner, stack = function.node, function.owner, reader.call_stack
    name = getattr(node, "name", "<lambda>")
    stack.append(node)
    frame = Frame(Scope(outer=function.scope), name, owner, function.defined_in)
    _bind_parameters(reader, function, frame, args, kwargs)
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    try:
        with reader.inside(frame), reader.collecting(Inlined()):
            off, unknown = _recording_under(reader, decorators)
            with reader.recording(off, unknown):
                value = _run(reader, node)
        if any(dotted(_without_arguments(item)).rpartition(".")[2] == "contextmanager" for item in decorators):
            # What follows its `yield` happens after the body of the `with`, not here.
            if reader.block and isinstance(reader.block[-1], Inlined):
                reader.block.pop()
            reader.hide(node, args)
        return value
    finally:
        stack.pop()


def _with_owner(function: UserFunction, args: tuple[Value, ...]) -> tuple[Value, ...]:
    """The arguments by position, `self` first."""
    decorators = getattr(function.node, "decorator_list", ())
    static = any(isinstance(item, ast.Name) and item.id == "staticmethod" for item in decorators)
    return args if function.owner is None or static else (function.owner, *args)


def _by_name(function: UserFunction, args: tuple[Value, ...], kwargs: dict[str, Value]) -> dict[str, Value]:
    spec = function.node.args
    names = (parameter.arg for parameter in (*spec.posonlyargs, *spec.args))
    return {**dict(zip(names, _with_owner(function, args), strict=False)), **kwargs}


def _bind_parameters(
    reader: Reader, function: UserFunction, frame: Frame, args: tuple[Value, ...], kwargs: dict[str, Value]
) -> None:
    spec, names = function.node.args, frame.scope.names
    args = _with_owner(function, args)
    by_position = [parameter.arg for parameter in (*spec.posonlyargs, *spec.args)]
    every = [*by_position, *(parameter.arg for parameter in spec.kwonlyargs)]
    names.update(dict.fromkeys(every, UNKNOWN))
    if reader.trusts_defaults:
        # When nothing calls the function, an argument need not have its default.
        defaults: dict[str, ast.expr | None] = dict(zip(by_position[::-1], spec.defaults[::-1], strict=False))
        defaults.update(zip(every[len(by_position) :], spec.kw_defaults, strict=True))
        names.update({name: Const(node.value) for name, node in defaults.items() if isinstance(node, ast.Constant)})
    names.update(zip(by_position, args, strict=False))
    names.update({name: value for name, value in kwargs.items() if name in names})
    frame.parameters = frozenset(every)
    if spec.vararg:
        names[spec.vararg.arg] = Group(list(args[len(by_position) :]), complete=True)
    if spec.kwarg:
        extra = {name: value for name, value in kwargs.items() if name not in names}
        names[spec.kwarg.arg] = Group(list(extra.values()), complete=False, keys=list(extra))


def _recording_under(reader: Reader, decorators: list[ast.expr]) -> tuple[Place | None, bool]:
    """Where gradient recording is off inside a function with these decorators, and whether that is uncertain."""
    for decorator in decorators:
        if reader.evaluate(_without_arguments(decorator)) in NO_GRAD:
            return reader.place(decorator), False
    return reader.grad_off, reader.grad_unknown


def _without_arguments(decorator: ast.expr) -> ast.expr:
    return decorator.func if isinstance(decorator, ast.Call) else decorator


def _run(reader: Reader, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Value:
    if isinstance(node, ast.Lambda):
        return reader.evaluate(node.body)
    reader.execute(node.body)
    frame = reader.frame
    if frame.yielded:
        return Group(frame.yielded, complete=False)
    return reduce(join, frame.returned) if frame.returned else Const(None)
