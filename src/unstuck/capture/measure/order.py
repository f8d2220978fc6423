"""The order in which modules run."""

from __future__ import annotations

import weakref

from torch import nn

from unstuck.events import Place

_FEW = 100


class Order:
    """Numbers modules as they first run in training, and keeps the line that called each.

    An address may be another module's later, so each is checked.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[nn.Module], int, Place | None]] = {}
        self._room = _FEW
        self.count = 0
        """How many have been seen."""

    def note(self, module: nn.Module, place: Place | None) -> None:
        """A module has run, called at this line."""
        if self._of(module) is not None:
            return
        if len(self._known) >= self._room:
            self._known = {key: item for key, item in self._known.items() if item[0]() is not None}
            self._room = max(_FEW, 2 * len(self._known))
        self._known[id(module)] = (weakref.ref(module), self.count, place)
        self.count += 1

    def of(self, module: nn.Module) -> int:
        """Its number; -1 if it was not seen to run."""
        known = self._of(module)
        return -1 if known is None else known[1]

    def place(self, module: nn.Module | None) -> Place | None:
        """The line that called it."""
        known = self._of(module) if module is not None else None
        return None if known is None else known[2]

    def _of(self, module: nn.Module) -> tuple[weakref.ref[nn.Module], int, Place | None] | None:
        known = self._known.get(id(module))
        return known if known is not None and known[0]() is module else None
