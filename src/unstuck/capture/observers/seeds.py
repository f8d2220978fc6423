"""Observes random generators being seeded, and whether torch's ever was."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from unstuck.capture.torch_hooks.patches import Patches
from unstuck.capture.window import Observer, Watch
from unstuck.events import Seeded

_MOST_EVENTS = 64
_BY_HAND = 2**48
"""Torch begins with a seed of 64 random bits, and nobody types so many."""


class Seeds(Observer):
    """Records which generator was seeded with what; at the end, that torch was never seeded and numbers were drawn."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._recorded = 0
        self._initial = torch.initial_seed()
        self._state = torch.get_rng_state()

    def attach(self, patches: Patches) -> None:
        """Watch torch and python, and numpy as soon as the program has its generators."""
        for owner in (torch, torch.random):
            self._watch_seeding(patches, owner, "manual_seed", "torch")
        self._watch_seeding(patches, random, "seed", "random")
        numpy = sys.modules.get("numpy.random")
        if numpy is not None:
            self._watch_seeding(patches, numpy, "seed", "numpy")

    def _watch_seeding(self, patches: Patches, owner: Any, name: str, generator: str) -> None:
        patches.around(owner, name, lambda args, kwargs: self._seeding(generator, args, kwargs), self._seeded)

    def _seeding(self, generator: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seeded | None:
        watch = self._watch
        seed = args[0] if args else next(iter(kwargs.values()), None)
        if self._recorded >= _MOST_EVENTS or not watch.is_listening() or not isinstance(seed, int):
            return None
        number = int(seed) if abs(seed) < 2**63 else None
        if number is None:
            return None
        return Seeded(step=watch.window.steps, place=watch.places.here(), generator=generator, seed=number)

    def _seeded(self, event: Seeded, result: Any, error: BaseException | None) -> None:
        if error is None:
            self._recorded += 1
            self._watch.tell(event)

    def finish(self) -> None:
        """The run ended."""
        unseeded = torch.initial_seed() == self._initial >= _BY_HAND
        if unseeded and not torch.equal(torch.get_rng_state(), self._state):
            self._watch.tell(Seeded(step=self._watch.window.steps, generator="torch"))
