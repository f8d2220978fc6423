"""The order in which modules run."""

from __future__ import annotations

import weakref

from torch import nn

_FEW = 100


class Order:
    """Numbers modules as they first run in training. An address may be another module's later, so each is checked."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[weakref.ref[nn.Module], int]] = {}
        self._room = _FEW
        self.count = 0
        """How many have been seen."""

    def note(self, module: nn.Module) -> None:
        """A module has run."""
        known = self._places.get(id(module))
        if known is not None and known[0]() is module:
            return
        if len(self._places) >= self._room:
            self._places = {key: item for key, item in self._places.items() if item[0]() is not None}
            self._room = max(_FEW, 2 * len(self._places))
        self._places[id(module)] = (weakref.ref(module), self.count)
        self.count += 1

    def of(self, module: nn.Module) -> int:
        """Its number; -1 if it was not seen to run."""
        known = self._places.get(id(module))
        return known[1] if known is not None and known[0]() is module else -1
