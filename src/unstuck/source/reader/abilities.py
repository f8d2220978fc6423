"""What code could do with what it is given: numbers do nothing, a loss can be back-propagated, a model cleared or
switched, and only what holds an optimizer can step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from unstuck.lazy import pattern
from unstuck.source.reader import knowledge
from unstuck.source.reader.scope import dotted
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
    UserFunction,
    Value,
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
        return _of_function(value.node)
    if not isinstance(value, Instance) or value.last in knowledge.LOSSES:
        return NOTHING
    if knowledge.is_optimizer(value):
        return OF_OPTIMIZER
    if knowledge.is_scaler(value):
        return Ability.RESCALE
    return OF_MODEL if knowledge.is_module(value) else NOTHING


@lru_cache(maxsize=512)
def _of_function(node: ast.AST) -> Ability:
    """What a function could do that is passed on and called by code that cannot be read."""
    names = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
    found = NOTHING
    for name in names & DONE_BY.keys():
        found |= DONE_BY[name]
    return found


def ability_of_unknown(value: Value, node: ast.expr | None) -> Ability:
    """What code could do that is given something unknown which the user calls by a telling name."""
    if not isinstance(value, Unknown | Method) or node is None:
        return NOTHING
    name = dotted(node)
    found = next((ability for words, ability in NAMED if name and words.search(name)), NOTHING)
    return found if isinstance(value, Unknown) or found is OF_OPTIMIZER else NOTHING
