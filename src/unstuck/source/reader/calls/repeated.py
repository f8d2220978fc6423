"""Functions that need no second reading: given the same plain values as before, they did nothing that matters.

What they take from around them must be plain and still the same, and they read no attribute that other code may set.

Libraries ask the same questions everywhere (`is_torch_available()`); reading the answer again took most of lint's time.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable

import msgspec

from unstuck.source.facts import Facts
from unstuck.source.reader.abilities import DONE_BY, reachable
from unstuck.source.reader.reader import OuterName, Reader
from unstuck.source.values import (
    Choice,
    Const,
    Group,
    Instance,
    Method,
    Symbol,
    Tensor,
    Unknown,
    UserClass,
    UserFunction,
    Value,
    alternatives,
)

MOST_ITEMS = 20
DEEPEST = 4
"""How long and how deep a list may be that is looked into; it may contain itself."""
Key = tuple[Hashable, ...]


def key_of(reader: Reader, function: UserFunction, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Key | None:
    """What decides what a call does, if that can be compared with another call."""
    if isinstance(function.node, ast.Lambda):
        return None
    given = [_plain(value) for value in (*args, *kwargs.values())]
    if None in given:
        return None
    switches = (reader.trusts_defaults, reader.grad_off, reader.grad_unknown)
    return (function.node, id(function.scope), id(function.owner), *switches, *given, *kwargs)


def effects(reader: Reader) -> tuple[int, ...]:
    """How much was found so far, besides calls."""
    return (
        reader.attributes_read,
        _sizes(reader.facts),
        len(reader.block),
        len(reader.facts.escaped),
        len(reader.facts.loaded),
    )


def is_harmless(reader: Reader, value: Value, before: tuple[int, ...], calls: int) -> bool:
    """Did a function find nothing, and give back something plain? `calls` were made before it."""
    if not _is_answer(value) or effects(reader) != before:
        return False
    return all(called.last not in DONE_BY and _is_answer(called.result) for called in reader.facts.calls[calls:])


def kept(outside: Iterable[OuterName]) -> list[OuterName] | None:
    """Each of these names once; None if one is bound to what can change without being bound to something else."""
    names: dict[tuple[int, str], OuterName] = {}
    for taken in outside:
        first = names.setdefault((id(taken.scope), taken.name), taken)
        if not _is_plain(taken.meant) or not _is_same(first.bound, taken.bound):
            return None
    return list(names.values())


def same_around(outside: Iterable[OuterName]) -> bool:
    """Are these names still bound to what they were bound to?"""
    return all(_is_same(taken.scope.get(taken.name), taken.bound) for taken in outside)


def _is_plain(value: Value) -> bool:
    return all(_plain(option) is not None for option in alternatives(value))


def _is_same(one: Value, other: Value) -> bool:
    return one is other or (isinstance(one, Symbol) and one == other)


def again(value: Value) -> Value:
    """What a second call gives back: a list or an object of its own."""
    if isinstance(value, Choice):
        return Choice(tuple(map(again, value.options)))
    if isinstance(value, Group):
        return Group(list(map(again, value.items)), value.complete, value.keys and list(value.keys), value.place)
    if isinstance(value, Instance):
        own = {"attrs": dict(value.attrs), "items": list(value.items), "holds": list(value.holds)}
        return msgspec.structs.replace(value, **own)
    return value


def _is_answer(value: Value, deepest: int = DEEPEST) -> bool:
    """Is it plain, or made of what is?"""
    if isinstance(value, Method):
        return deepest > 0 and _is_answer(value.receiver, deepest - 1)
    if isinstance(value, Choice | Group):
        inside = value.options if isinstance(value, Choice) else value.items
        return deepest > 0 and len(inside) <= MOST_ITEMS and all(_is_answer(part, deepest - 1) for part in inside)
    if isinstance(value, Tensor):
        # `torch.cuda.is_available()` is read as a tensor too.
        made_of = (*value.inputs, *value.args)
        return (
            not value.leaf and value.module is None and deepest > 0 and all(_is_answer(p, deepest - 1) for p in made_of)
        )
    if isinstance(value, Instance):
        return value.cls is None and not value.kind.startswith("torch.") and not any(reachable((value,)))
    return _plain(value) is not None


def _sizes(facts: Facts) -> int:
    return (
        len(facts.losses)
        + len(facts.optimizers)
        + len(facts.schedulers)
        + len(facts.attributes)
        + len(facts.running_sums)
        + len(facts.groups_added)
        + len(facts.replaced)
        + len(facts.frozen)
        + len(facts.modules)
        + len(facts.plain_lists)
        + len(facts.made_in_forward)
    )


def _plain(value: Value) -> Key | None:
    """A value that no call can change, as something to compare."""
    if isinstance(value, Unknown):
        return ("unknown",)
    if isinstance(value, Const):
        literal = value.value
        return ("constant", str(type(literal)), literal) if isinstance(literal, Hashable) else None
    if isinstance(value, Symbol):
        return ("name", value.name)
    return (value.__class__, id(value.node)) if isinstance(value, UserFunction | UserClass) else None
