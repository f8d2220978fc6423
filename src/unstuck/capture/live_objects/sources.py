"""Puts what a loop draws its data from back to where it was: loader, sampler, data set, and generators of their own."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from unstuck.capture.live_objects.restore import refill

MOST_OBJECTS = 2_000
MOST_ITEMS = 100
"""Of a list or dict, how many items are looked into."""
Putting = Callable[[], object]


class Sources:
    """Everything a loader reaches that may change while it is gone through."""

    def __init__(self, loader: Any, *models: nn.Module) -> None:
        self._objects = _reachable(loader)
        self._generators = _generators([*self._objects, *(part for model in models for part in model.modules())])

    @contextlib.contextmanager
    def untouched(self) -> Iterator[None]:
        """Attributes and generators stay as they were, and a pass that is going on stays where it is."""
        back = [_attributes(thing) for thing in self._objects if hasattr(thing, "__dict__")]
        back += [_state(generator) for generator in self._generators]
        for thing in self._objects:
            if getattr(thing, "_iterator", None) is not None:
                thing._iterator = None  # persistent workers serve one pass at a time
        try:
            yield
        finally:
            for put_back in back:
                put_back()

    def shift(self, by: int) -> None:
        """Let generators of their own draw other numbers."""
        for generator in self._generators:
            if isinstance(generator, torch.Generator):
                generator.manual_seed((generator.initial_seed() + by) % 2**63)
            elif isinstance(generator, random.Random):
                generator.seed(generator.getrandbits(62) + by)
            else:
                _shift_numpy(generator, by)


def _shift_numpy(generator: Any, by: int) -> None:
    if hasattr(generator, "set_state"):
        generator.seed((int(generator.randint(2**31)) + by) % 2**32)
    else:
        bits = generator.bit_generator
        bits.state = type(bits)(int(generator.integers(2**62)) + by).state


def _attributes(thing: Any) -> Putting:
    names: dict[str, Any] = vars(thing)
    before = dict(names)
    containers = [(value, value.copy()) for value in before.values() if type(value) in (dict, list, set)]

    def put_back() -> None:
        for value, contents in ((names, before), *containers):
            refill(value, contents)

    return put_back


def _state(generator: Any) -> Putting:
    if isinstance(generator, torch.Generator | random.Random):
        read, write = (
            (generator.get_state, generator.set_state)
            if isinstance(generator, torch.Generator)
            else (generator.getstate, generator.setstate)
        )
        state: Any = read()
        return lambda: write(state)
    if hasattr(generator, "set_state"):
        numpy_state = generator.get_state()
        return lambda: generator.set_state(numpy_state)
    bits = generator.bit_generator
    inner = bits.state
    return lambda: setattr(bits, "state", inner)


def _is_generator(thing: Any) -> bool:
    numpy = sys.modules.get("numpy")
    of_numpy = (numpy.random.Generator, numpy.random.RandomState) if numpy is not None else ()
    return isinstance(thing, (torch.Generator, random.Random, *of_numpy))


def _reachable(root: Any) -> list[Any]:
    """The objects below the loader, itself first: what it holds, and what that holds."""
    found: dict[int, Any] = {}
    waiting = [root]
    while waiting and len(found) < MOST_OBJECTS:
        thing = waiting.pop(0)
        if id(thing) in found or isinstance(thing, Tensor | ModuleType | type | str | bytes | int | float | nn.Module):
            continue
        found[id(thing)] = thing
        waiting += _inside(thing)
    return list(found.values())


def _inside(thing: Any) -> list[Any]:
    if isinstance(thing, dict):
        return list(thing.values())[:MOST_ITEMS]
    if isinstance(thing, list | tuple | set):
        return list(thing)[:MOST_ITEMS]
    if isinstance(thing, MethodType):
        return [thing.__self__]
    if isinstance(thing, FunctionType):
        return [cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell)]
    return list(vars(thing).values()) if hasattr(thing, "__dict__") and not _is_generator(thing) else []


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _generators(things: list[Any]) -> list[Any]:
    """Those among these objects, in their attributes, and in the modules that define their classes and functions."""
    found: dict[int, Any] = {}
    modules: dict[str, Any] = {}
    for thing in things:
        home = thing.__module__ if isinstance(thing, FunctionType) else type(thing).__module__
        if home.partition(".")[0] not in ("torch", "builtins", "random", "numpy"):
            modules.setdefault(home, vars(sys.modules[home]) if home in sys.modules else {})
        for value in (thing, *(vars(thing).values() if hasattr(thing, "__dict__") else ())):
            if _is_generator(value):
                found[id(value)] = value
    for names in modules.values():
        found.update((id(value), value) for value in list(names.values()) if _is_generator(value))
    return [generator for generator in found.values() if generator is not torch.default_generator]
