"""What stands where a tensor should: a tuple, a dict, None or an object, and the tensors in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor

from unstuck.capture.crash.failing_line import MISSING, FailingLine, attributes_of

MOST_PARTS = 8
_PLAIN = (bool, int, float, str)
_NOT_TENSOR = re.compile(r"argument '(\w+)' \(position (\d+)\) must be Tensor, not ([\w.]+)")
_NO_METHOD = re.compile(r"'([\w.]+)' object has no attribute '(\w+)'")


class Stranger(NamedTuple):
    """An argument, or the owner of a method, that is no tensor."""

    argument: str
    """`input`, `target`; `self` if a method of tensors was asked of it."""
    written: str
    """What the user's line calls it, if that is the same thing."""
    value: Any


def stranger(message: str, line: FailingLine, calls: Sequence[FrameType], direct: bool) -> Stranger | None:
    """What torch, in these calls, or the user's line took for a tensor. `direct`: the line makes the first call."""
    if match := _NOT_TENSOR.search(message):
        argument, position, kind = match.group(1), int(match.group(2)) - 1, match.group(3)
        return _in_calls(argument, kind, line, calls, direct) or _in_line(argument, position, kind, line)
    match = _NO_METHOD.search(message)
    if match is None or not hasattr(Tensor, match.group(2)):
        return None
    kind, method = match.groups()
    if calls:
        found = (_in_calls(name, kind, line, calls, direct) for name in ("input", "target"))
        return next((one for one in found if one is not None), None)
    owner = line.owner_of(method)
    return Stranger("self", owner[0], owner[1]) if owner is not None and _is_a(owner[1], kind) else None


def _in_calls(argument: str, kind: str, line: FailingLine, calls: Sequence[FrameType], direct: bool) -> Stranger | None:
    """By the name that torch gives it."""
    for frame in calls:
        value = frame.f_locals.get(argument, MISSING)
        if _is_a(value, kind):
            names = [name for name in frame.f_code.co_varnames if name != "self"]
            written = line.argument(names.index(argument)) if direct else line.name_of(value)
            return Stranger(argument, written, value)
    return None


def _in_line(argument: str, position: int, kind: str, line: FailingLine) -> Stranger | None:
    """The user's line calls a function of C, which has no frame."""
    value = line.argument_value(position)
    return Stranger(argument, line.argument(position), value) if _is_a(value, kind) else None


def _is_a(value: Any, kind: str) -> bool:
    return value is not MISSING and type(value).__name__ == kind.rpartition(".")[2]


def common_kind(thing: Any) -> str:
    """`str` of a list of words, `int` of a tuple of whole numbers, else nothing."""
    kinds = {type(part) for _, part in _parts(thing)} if issubclass(type(thing), tuple | list) else set()
    return next(iter(kinds)).__name__ if len(kinds) == 1 and kinds <= set(_PLAIN) else ""


def tensors_in(thing: Any) -> list[tuple[str, Tensor]]:
    """Its tensors and how to get at them: `[0]`, `['logits']`, `.logits`. Runs no code of the program."""
    found = [(way, part) for way, part in _parts(thing) if issubclass(type(part), Tensor)]
    return found[:MOST_PARTS]


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    kind = type(thing)
    if issubclass(kind, dict):
        yield from ((f"[{key!r}]", part) for key, part in dict.items(thing) if type(key) in _PLAIN)
    elif issubclass(kind, tuple):
        yield from ((f"[{place}]", part) for place, part in enumerate(tuple.__iter__(thing)))
    elif issubclass(kind, list):
        yield from ((f"[{place}]", part) for place, part in enumerate(list.__iter__(thing)))
    else:
        yield from ((f".{name}", part) for name, part in attributes_of(thing).items())
