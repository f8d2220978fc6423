"""Seeds, dropout: what chance does in a run."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from unstuck.capture.launch.importing import after_import
from unstuck.capture.trial.interventions.lab import Arguments, Lab

UNSEEDED = 2**52
"""What generators begin with that the script does not seed: large, so that it is not taken for the script's own."""
SHIFT = 1_000_003
"""From one seed to the next."""
SEED_NAMES = ("seed", "a")
"""How functions call the seed they are given."""
DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
RATES = ("drop_prob", "dropout", "attention_dropout", "attn_dropout")
"""Attributes in which modules keep a rate at which they drop."""


def seed(lab: Lab, number: int) -> None:
    """Begin with the same numbers every time; shift whatever seeds the script sets, if another number is wanted.

    Generators that the script makes or seeds anew without a number get one too, each another.
    """
    random.seed(UNSEEDED + number)
    torch.manual_seed(UNSEEDED + number)
    _when_there(lab, "numpy", lambda numpy: numpy.random.seed((UNSEEDED + number) % 2**32))
    seeds = Seeds(number)
    for owner in (torch, torch.random):
        lab.wrap(owner, "seed", seeds.chosen)
    lab.wrap(random, "seed", seeds.given)
    lab.wrap(random.Random, "seed", seeds.given_to_method)
    _when_there(lab, "numpy", lambda numpy: _seed_numpy(lab, numpy, seeds))
    if number:
        for owner, name in ((torch, "manual_seed"), (torch.random, "manual_seed")):
            lab.wrap(owner, name, seeds.given)
        lab.wrap(torch.cuda, "manual_seed", seeds.given)
        lab.wrap(torch.cuda, "manual_seed_all", seeds.given)
        lab.wrap(torch, "Generator", seeds.generators)


def leave_to_chance() -> None:
    """Begin with other numbers every time, as a new process does; a fork inherits those of its parent."""
    random.seed()
    torch.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _when_there(lab: Lab, name: str, action: Callable[[Any], None]) -> None:
    if name in sys.modules:
        action(sys.modules[name])
    else:
        lab.when_undone(after_import(name, lambda: action(sys.modules[name])))


def _seed_numpy(lab: Lab, numpy: Any, seeds: Seeds) -> None:
    lab.wrap(numpy.random, "seed", lambda original: seeds.given(original, 2**32))
    lab.wrap(numpy.random, "default_rng", seeds.given)


class Seeds:
    """Other seeds for those that a script sets."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._made = 0

    def new(self) -> int:
        """In place of one that the system would choose."""
        self._made += 1
        return UNSEEDED + self._number + SHIFT * self._made

    def other(self, value: Any, limit: int = 2**63) -> Any:
        """In place of one that the script chose."""
        if value is None:
            return self.new() % limit
        whole = isinstance(value, int) and not isinstance(value, bool)
        return (value + SHIFT * self._number) % limit if whole and self._number else value

    def given(self, original: Callable[..., Any], limit: int = 2**63) -> Callable[..., Any]:
        """For a function whose first argument is the seed, whatever its name."""

        def seeded(*args: Any, **kwargs: Any) -> Any:
            if args:
                return original(self.other(args[0], limit), *args[1:], **kwargs)
            name = next((name for name in SEED_NAMES if name in kwargs), None)
            if name is None:
                return original(self.other(None, limit), **kwargs)
            return original(**{**kwargs, name: self.other(kwargs[name], limit)})

        return seeded

    def given_to_method(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `random.Random.seed`, which is also called when one is made."""

        def seeded(owner: Any, a: Any = None, *args: Any, **kwargs: Any) -> Any:
            return original(owner, self.other(a), *args, **kwargs)

        return seeded

    def chosen(self, original: Callable[[], int]) -> Callable[[], int]:
        """For `torch.seed`, which lets the system choose."""

        def seeded() -> int:
            number = self.new()
            torch.default_generator.manual_seed(number)
            return number

        return seeded

    def generators(self, original: type[torch.Generator]) -> type[torch.Generator]:
        """For `torch.Generator`, whose methods cannot be replaced."""
        seeds = self

        class Kind(type(original)):  # type: ignore[misc]
            def __instancecheck__(cls, thing: Any) -> bool:
                return isinstance(thing, original)

        class Generator(original, metaclass=Kind):  # type: ignore[valid-type, misc]
            def manual_seed(self, seed: int) -> Any:
                return super().manual_seed(seeds.other(seed))

        return Generator


def no_dropout(lab: Lab) -> None:
    """In functions, and in modules that keep a rate of their own."""
    for name in DROPOUTS:
        lab.wrap(F, name, _without)
    lab.wrap(F, "scaled_dot_product_attention", _without_in_attention)
    done: set[int] = set()

    def ready(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        if id(module) not in done:
            done.add(id(module))
            for part in module.modules():
                for name in RATES:
                    if isinstance(getattr(part, name, None), float):
                        setattr(part, name, 0.0)
        return args, kwargs

    lab.change_calls(ready)


def _without(original: Callable[..., Any]) -> Callable[..., Any]:
    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return original(input, 0.0, training, inplace)

    return dropout


def _without_in_attention(original: Callable[..., Any]) -> Callable[..., Any]:
    def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, *rest: Any, **kwargs: Any) -> Any:
        kwargs.pop("dropout_p", None)
        return original(query, key, value, attn_mask, 0.0, *rest[1:], **kwargs)

    return attention
