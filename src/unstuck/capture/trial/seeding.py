"""Seeds for every generator that a program uses."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from unstuck.capture.launch.importing import after_import
from unstuck.capture.trial.lab import Lab

UNSEEDED = 2**52
"""The seed of generators that the script does not seed: large, so that nobody takes it for the script's own."""
SHIFT = 1_000_003
"""From one seed to the next."""
SEED_NAMES = ("seed", "a")
"""The names that functions have for their seed."""


def seed(lab: Lab, number: int) -> None:
    """Begin with the same numbers every time; if `number` is not 0, shift whatever seeds the script sets.

    Generators that the script makes or seeds without a number get one too, each a different one.
    """
    random.seed(UNSEEDED + number)
    torch.manual_seed(UNSEEDED + number)
    _once_imported(lab, "numpy", lambda numpy: numpy.random.seed((UNSEEDED + number) % 2**32))
    seeds = Seeds(number)
    for owner in (torch, torch.random):
        lab.wrap(owner, "seed", seeds.without_argument)
    lab.wrap(random, "seed", seeds.with_seed)
    lab.wrap(random.Random, "seed", seeds.with_seed_in_method)
    _once_imported(lab, "numpy", lambda numpy: _seed_numpy(lab, numpy, seeds))
    if number:
        for owner, name in ((torch, "manual_seed"), (torch.random, "manual_seed")):
            lab.wrap(owner, name, seeds.with_seed)
        lab.wrap(torch.cuda, "manual_seed", seeds.with_seed)
        lab.wrap(torch.cuda, "manual_seed_all", seeds.with_seed)
        lab.wrap(torch, "Generator", seeds.generators)


def _once_imported(lab: Lab, name: str, action: Callable[[Any], None]) -> None:
    if name in sys.modules:
        action(sys.modules[name])
    else:
        lab.when_undone(after_import(name, lambda: action(sys.modules[name])))


def _seed_numpy(lab: Lab, numpy: Any, seeds: Seeds) -> None:
    lab.wrap(numpy.random, "seed", lambda original: seeds.with_seed(original, 2**32))
    lab.wrap(numpy.random, "default_rng", seeds.with_seed)


class Seeds:
    """Other seeds for those that a script sets."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._count = 0

    def new(self) -> int:
        """A seed in place of one that the system would choose."""
        self._count += 1
        return UNSEEDED + self._number + SHIFT * self._count

    def other(self, value: Any, limit: int = 2**63) -> Any:
        """A seed in place of one that the script chose."""
        if value is None:
            return self.new() % limit
        whole = isinstance(value, int) and not isinstance(value, bool)
        return (value + SHIFT * self._number) % limit if whole and self._number else value

    def with_seed(self, original: Callable[..., Any], limit: int = 2**63) -> Callable[..., Any]:
        """For a function whose first argument is the seed, whatever its name."""

        def seeded(*args: Any, **kwargs: Any) -> Any:
            if args:
                return original(self.other(args[0], limit), *args[1:], **kwargs)
            name = next((name for name in SEED_NAMES if name in kwargs), None)
            if name is None:
                return original(self.other(None, limit), **kwargs)
            return original(**{**kwargs, name: self.other(kwargs[name], limit)})

        return seeded

    def with_seed_in_method(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `random.Random.seed`, which is also called when one is made."""

        def seeded(owner: Any, a: Any = None, *args: Any, **kwargs: Any) -> Any:
            return original(owner, self.other(a), *args, **kwargs)

        return seeded

    def without_argument(self, original: Callable[[], int]) -> Callable[[], int]:
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
