"""What code could do with what it is given: numbers do nothing, a loss can be back-propagated, a model cleared or
switched, and only what holds an optimizer can step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from unstuck.lazy import pattern
from unstuck.source.reader import knowledge
from unstuck.source.reader.scope import Scope, dotted
from unstuck.source.trace import EVERYTHING, NOTHING, Ability
from unstuck.source.values import (
    Choice,
    Group,
    Instance,
    Method,
    Param,
    Parameters,
    Tensor,
    Unknown,
    UserClass,
    UserFunction,
    Value,
    find_method,
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


def ability_of_text(function: UserFunction) -> Ability:
    """What a function could do whose body is not read, by the names in it and in the functions that it calls.

    What it is given is not looked at.
    """
    waiting: list[tuple[ast.AST, Scope, UserClass | None]] = [(function.node, function.scope, function.defined_in)]
    seen: set[ast.AST] = set()
    found = NOTHING
    while waiting and found != EVERYTHING:
        node, scope, cls = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if len(seen) > MOST_FUNCTIONS:
            return EVERYTHING
        attributes, called = _names_in(node)
        for name in attributes & DONE_BY.keys():
            found |= DONE_BY[name]
        for name in called:
            value = scope.get(name)
            if isinstance(value, UserFunction):
                waiting.append((value.node, value.scope, value.defined_in))
        for name in attributes:
            method = find_method(cls, name) if cls is not None else None
            if method is not None:
                waiting.append((method[0], method[1].scope, cls))
    return found


@lru_cache(maxsize=2048)
def _names_in(node: ast.AST) -> tuple[frozenset[str], frozenset[str]]:
    """The attributes in a function, and the names that it calls."""
    parts = list(ast.walk(node))
    functions = [part.func for part in parts if isinstance(part, ast.Call)]
    # Reading `p.grad` changes nothing; `p.grad = None` and `p.grad.zero_()` do.
    in_place = [function for function in functions if isinstance(function, ast.Attribute) and function.attr[-1] == "_"]
    changed = {id(inner) for function in in_place for inner in ast.walk(function.value)}
    attributes = (
        part.attr
        for part in parts
        if isinstance(part, ast.Attribute)
        and (part.attr != "grad" or not isinstance(part.ctx, ast.Load) or id(part) in changed)
    )
    return frozenset(attributes), frozenset(part.id for part in functions if isinstance(part, ast.Name))


def ability_of_unknown(value: Value, node: ast.expr | None) -> Ability:
    """What code could do that is given something unknown which the user calls by a telling name."""
    if not isinstance(value, Unknown | Method) or node is None:
        return NOTHING
    name = dotted(node)
    found = next((ability for words, ability in NAMED if name and words.search(name)), NOTHING)
    return found if isinstance(value, Unknown) or found is OF_OPTIMIZER else NOTHING
