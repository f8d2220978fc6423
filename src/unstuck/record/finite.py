"""None in place of every optional number that is not finite.

Whatever may be None because it was not measured is None for a rule too where it cannot be reckoned with, so that no
rule needs to think of both. Numbers that are always there, such as learning rates, stay as they are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

_Kind = TypeVar("_Kind", bound=msgspec.Struct)
_Change = Callable[[Any], Any]


def measured(event: _Kind) -> _Kind:
    """The event as rules are to see it."""
    changed: _Kind = _of_struct(type(event))(event)
    return changed


def _or_none(value: Any) -> Any:
    return None if type(value) is float and not math.isfinite(value) else value


def _all_or_none(values: Any) -> Any:
    return tuple([None if type(value) is float and not math.isfinite(value) else value for value in values])


@functools.cache
def _of_struct(kind: type[msgspec.Struct]) -> _Change:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    changes = {field.name: change for field in info.fields if (change := _change_for(field.type))}

    def change_fields(struct: Any) -> Any:
        new = {name: change(getattr(struct, name)) for name, change in changes.items()}
        return msgspec.structs.replace(struct, **new) if new else struct

    return change_fields


def _change_for(kind: inspect.Type) -> _Change | None:
    """What to do with a value of this type; None if nothing."""
    if isinstance(kind, inspect.UnionType):
        if any(isinstance(one, inspect.FloatType) for one in kind.types) and kind.includes_none:
            return _or_none
        changes = [change for one in kind.types if (change := _change_for(one))]
        return (lambda value: value if value is None else changes[0](value)) if changes else None
    if isinstance(kind, inspect.StructType):
        return lambda value: measured(value)
    if isinstance(kind, inspect.VarTupleType):
        change = _change_for(kind.item_type)
        if change is None or change is _or_none:
            return _all_or_none if change else None
        return lambda values: tuple(map(change, values))
    return None
