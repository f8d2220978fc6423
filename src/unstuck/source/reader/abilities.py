"""What code could do with what it is given: numbers do nothing, a loss can be back-propagated, a model cleared or
switched, and only what holds an optimizer can step."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

import msgspec

from unstuck.lazy import pattern
from unstuck.source.nodes import parts_of
from unstuck.source.reader import knowledge
from unstuck.source.reader.everyday import TRAINS, ability_of_name, is_observer, words_of
from unstuck.source.reader.scope import dotted
from unstuck.source.trace import EVERYTHING, NOTHING, Ability
from unstuck.source.values import (
    UNKNOWN,
    Choice,
    Group,
    Instance,
    Method,
    Param,
    Parameters,
    Symbol,
    Tensor,
    Unknown,
    UserClass,
    UserFunction,
    Value,
    bound_method,
)

OF_MODEL = Ability.BACKWARD | Ability.CLEAR | Ability.RESCALE | Ability.STEP | Ability.SWITCH
OF_PARAMETERS = Ability.CLEAR | Ability.RESCALE | Ability.STEP
OF_OPTIMIZER = Ability.CLEAR | Ability.RESCALE | Ability.STEP
OF_LOSS = Ability.BACKWARD

NAMED = (
    (pattern(r"(^|[._])(opt(im\w*)?|optimi[sz]er\w*)$", re.I), OF_OPTIMIZER),
    (pattern(r"(^|[._])scaler$", re.I), Ability.RESCALE),
    (pattern(r"(^|[._])loss\w*$", re.I), OF_LOSS),
    (pattern(r"(^|[._])(model|net)$", re.I), OF_MODEL),
    (pattern(r"(^|[._])(trainer|engine|self)$", re.I), EVERYTHING),
)
"""What something unknown could be, by its name."""
DONE_BY = {
    "backward": Ability.BACKWARD,
    "manual_backward": Ability.BACKWARD,
    "zero_grad": Ability.CLEAR,
    "grad": Ability.CLEAR,
    "step": Ability.STEP,
    "train": Ability.SWITCH,
    "eval": Ability.SWITCH,
}
MOST_FUNCTIONS = 60
"""Functions that one function calls, and these, which are searched for names."""
COMPUTING = (
    "torch.nn.functional.", "torch.linalg.", "torch.fft.", "torch.special.", "torch.random.", "torch.cuda.",
    "torch.autograd.grad", "torch.distributions.",
)  # fmt: skip
"""Functions of torch that return a value and change none, besides those of `torch` itself."""
DEEPEST = 3
"""Objects inside objects that are looked into."""


def reachable(values: Iterable[Value]) -> Iterator[Value]:
    """Everything able to train that code can reach from the values, each once."""
    waiting = [(value, 0) for value in values]
    seen: set[int] = set()
    while waiting:
        value, depth = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Choice):
            waiting += [(option, depth) for option in value.options]
        elif isinstance(value, Group):
            waiting += [(item, depth) for item in value.items]
        elif isinstance(value, Method):
            waiting += [(value.receiver, depth)] if value.name in DONE_BY else []
        elif ability_of(value):
            yield value
        elif isinstance(value, Instance) and depth < DEEPEST and not knowledge.is_scheduler(value):
            inside = (*value.attrs.values(), *value.holds)
            made_with = () if value.cls is not None else (*value.args, *value.kwargs.values())
            waiting += [(part, depth + 1) for part in (*inside, *made_with)]


def ability_of(value: Value) -> Ability:
    """What code could do that is given this very value."""
    if isinstance(value, Tensor):
        return OF_LOSS if not value.cut and value.op in knowledge.LOSS_FUNCTIONS else NOTHING
    if isinstance(value, Parameters | Param):
        return OF_PARAMETERS
    if isinstance(value, UserFunction):
        return ability_of_text(value)
    if not isinstance(value, Instance) or value.last in knowledge.LOSSES:
        return NOTHING
    if knowledge.is_optimizer(value):
        return OF_OPTIMIZER
    if knowledge.is_scaler(value):
        return Ability.RESCALE
    return OF_MODEL if knowledge.is_module(value) else NOTHING


def ability_of_text(
    function: UserFunction, given: Mapping[str, Value] | None = None, *, computes: bool = False
) -> Ability:
    """What a function could do whose body is not read, by the names in it and in the functions that it calls.

    Of what it is given only the functions are looked at. What calls something that is not known could do everything;
    if it `computes` the output of a network, only by a name that says so.
    """
    own, given = function.node, given or {}
    waiting = [function]
    seen: set[ast.AST] = set()
    found = NOTHING
    while waiting and found != EVERYTHING:
        function = waiting.pop()
        if function.node in seen:
            continue
        seen.add(function.node)
        if len(seen) > MOST_FUNCTIONS:
            return EVERYTHING
        text = _text_of(function.node)
        found |= text.does
        for name in text.attributes:
            method = bound_method(function.defined_in, name, function.owner) if function.defined_in else None
            waiting += [method] if method is not None else []
        for called in text.called:
            passed = given.get(called.id) if isinstance(called, ast.Name) and function.node is own else None
            if isinstance(passed, UserFunction):
                waiting.append(passed)
                continue
            more, can = _called_by(called, function, text.bound)
            waiting += more
            found |= can if can != EVERYTHING or not computes or _says_training(called) else NOTHING
    return found


def _says_training(called: ast.expr) -> bool:
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    return bool(TRAINS.intersection(words_of(name)))


class _Text(msgspec.Struct, frozen=True):
    """What a function consists of."""

    attributes: frozenset[str]
    called: tuple[ast.expr, ...]
    """What it calls, besides the functions that it defines itself and what `type(x)` gave it."""
    bound: frozenset[str]
    """Names whose values come from its own text or its arguments."""
    does: Ability
    """What follows from the text alone."""


@lru_cache(maxsize=2048)
def _text_of(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> _Text:
    parts = list(parts_of(node))
    functions = [part.func for part in parts if isinstance(part, ast.Call)]
    in_place = [function for function in functions if isinstance(function, ast.Attribute) and _is_in_place(function)]
    changed = {id(inner) for function in in_place for inner in parts_of(function.value)}
    # Reading `p.grad` changes nothing; `p.grad = None` and `p.grad.zero_()` do.
    attributes = frozenset(
        part.attr
        for part in parts
        if isinstance(part, ast.Attribute)
        and (part.attr != "grad" or not isinstance(part.ctx, ast.Load) or id(part) in changed)
    )
    does = NOTHING
    for name in attributes & DONE_BY.keys():
        does |= DONE_BY[name]
    if in_place or any(map(_steps_by_hand, parts)):
        does |= OF_PARAMETERS
    defined = {part.name for part in parts if isinstance(part, ast.FunctionDef) and part is not node}
    bound = {part.id for part in parts if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)}
    bound |= {part.arg for part in parts if isinstance(part, ast.arg)}
    called = (part for part in functions if not (isinstance(part, ast.Name) and part.id in defined - bound))
    kinds = {
        target.id
        for part in parts
        if isinstance(part, ast.Assign) and isinstance(part.value, ast.Call) and dotted(part.value.func) == "type"
        for target in part.targets
        if isinstance(target, ast.Name)
    }
    called = (part for part in called if not (isinstance(part, ast.Name) and part.id in kinds))
    return _Text(attributes, tuple(called), frozenset(bound), does)


def _is_in_place(function: ast.Attribute) -> bool:
    return function.attr.endswith("_") and not function.attr.startswith("__") and function.attr != "requires_grad_"


def _steps_by_hand(part: ast.AST) -> bool:
    """`p.data = ...`, or `p -= rate * p.grad`."""
    if isinstance(part, ast.AugAssign):
        return any(isinstance(inner, ast.Attribute) and inner.attr in ("grad", "data") for inner in parts_of(part))
    return isinstance(part, ast.Attribute) and part.attr == "data" and not isinstance(part.ctx, ast.Load)


def _called_by(called: ast.expr, function: UserFunction, bound: frozenset[str]) -> tuple[list[UserFunction], Ability]:
    """The functions of the user's that such a call in a function runs, or what else it could do."""
    value = _value_of(called, function, bound)
    if isinstance(value, UserFunction):
        return [value], NOTHING
    if isinstance(value, UserClass):
        made = bound_method(value, "__init__", None)
        return ([made], NOTHING) if made is not None else ([], EVERYTHING if UNKNOWN in value.bases else NOTHING)
    if isinstance(value, Instance) and value.cls is not None:
        method = bound_method(value.cls, "forward" if knowledge.is_module(value) else "__call__", value)
        return ([method], NOTHING) if method is not None else ([], EVERYTHING)
    if isinstance(value, Instance):
        return [], NOTHING if value.kind.startswith("torch.nn.") else EVERYTHING
    if isinstance(value, Symbol):
        return [], _of_library(value)
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    if not name:
        return [], EVERYTHING
    if name.endswith(("Error", "Exception", "Warning")):
        return [], NOTHING
    if isinstance(called, ast.Attribute):
        holder = dotted(called.value)
        harmless = name in knowledge.HARMLESS_METHODS or name in DONE_BY
        return [], NOTHING if harmless else ability_of_name(name, "" if holder == "self" else holder)
    return [], ability_of_name(name)


def _value_of(node: ast.expr, function: UserFunction, bound: frozenset[str]) -> Value:
    """The value of a name or an attribute in a function that is not being read."""
    if isinstance(node, ast.Name):
        arguments = function.node.args.args
        if function.owner is not None and arguments and node.id == arguments[0].arg:
            return function.owner
        return UNKNOWN if node.id in bound else function.scope.get(node.id)
    if not isinstance(node, ast.Attribute):
        return UNKNOWN
    if isinstance(node.value, ast.Name) and node.value.id == "self" and function.owner is None and function.defined_in:
        return bound_method(function.defined_in, node.attr, None) or UNKNOWN
    base = _value_of(node.value, function, bound)
    if isinstance(base, Symbol):
        return Symbol(f"{base.name}.{node.attr}")
    if isinstance(base, Instance) and node.attr in base.attrs:
        return base.attrs[node.attr]
    method = bound_method(base.cls, node.attr, base) if isinstance(base, Instance) and base.cls is not None else None
    return method or UNKNOWN


def _of_library(symbol: Symbol) -> Ability:
    """What a function of a library could do, whatever it is given."""
    name, last = symbol.name, symbol.last
    if name.startswith("builtins."):
        kind = getattr(builtins, last, None)
        harmless = last in knowledge.HARMLESS_CALLS or last == "setattr" or (isinstance(kind, type) and kind is not map)
        return NOTHING if harmless else EVERYTHING
    if name.startswith(("numpy.", "einops.", "re.", "torch.nn.init.")) or is_observer(name):
        return NOTHING
    if not name.startswith("torch."):
        return ability_of_name(last)
    computes = name.startswith(COMPUTING) or name.count(".") == 1
    return NOTHING if computes and last[0] != "_" and last[-1] != "_" and last != "compile" else ability_of_name(last)


def ability_of_unknown(value: Value, node: ast.expr | None) -> Ability:
    """What code could do that is given something unknown which the user calls by a telling name."""
    if not isinstance(value, Unknown | Method) or node is None:
        return NOTHING
    name = dotted(node)
    found = next((ability for words, ability in NAMED if name and words.search(name)), NOTHING)
    return found if isinstance(value, Unknown) or found is OF_OPTIMIZER else NOTHING
