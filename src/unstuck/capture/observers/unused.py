"""Observes which layers of a model are never called, however long it trains."""

from __future__ import annotations

import weakref

from torch import nn

from unstuck.capture.objects import Model
from unstuck.capture.window import Ended, Observer, Watch
from unstuck.events import LayersUnused

_FIRST_LOOK = 10
"""Optimizer steps, after which a layer has had its chance."""
_APART = 3
"""Each look comes after this many times as many steps as the one before."""
_FEW = 256
_MOST_NAMES = 50
_MOST_MODELS = 16


class UnusedLayers(Observer):
    """Records the layers with trainable parameters that no watched forward pass has called: again and again, since
    the program may let go of its model before it ends, and when one of them is called after all."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._ran: dict[int, weakref.ref[nn.Module]] = {}
        self._room = _FEW
        self._recorded: dict[str, tuple[str, ...]] = {}
        self._waited_for: set[int] = set()
        """Identities of layers that were recorded as unused."""
        self._next = _FIRST_LOOK

    def called(self, module: nn.Module) -> None:
        """A module is called, with or without gradients."""
        key = id(module)
        known = self._ran.get(key)
        if known is not None and known() is module:
            return
        if len(self._ran) >= self._room:
            self._ran = {old: item for old, item in self._ran.items() if item() is not None}
            self._room = max(_FEW, 2 * len(self._ran))
        self._ran[key] = weakref.ref(module)
        if key in self._waited_for:
            self._next = 0

    def window_began(self, ended: Ended) -> None:
        """Look at the models from time to time."""
        if ended.recorded and ended.step >= self._next:
            self._look()

    def finish(self) -> None:
        """The run ended."""
        if self._watch.window.steps >= _FIRST_LOOK:
            self._look()

    def _look(self) -> None:
        steps = self._watch.window.steps
        self._next = max(_APART * steps, _FIRST_LOOK)
        self._waited_for.clear()
        for model in self._watch.objects.models():
            names = tuple(self._unused(model))[:_MOST_NAMES]
            if names != self._recorded.get(model.label, ()) and len(self._recorded) < _MOST_MODELS:
                self._recorded[model.label] = names
                self._watch.tell(LayersUnused(step=steps, model=model.label, names=names))

    def _unused(self, model: Model) -> list[str]:
        root = model.module
        found = []
        for name, module in root.named_modules() if root is not None else ():
            known = self._ran.get(id(module))
            if name and (known is None or known() is not module) and _learns(module):
                found.append(name)
                self._waited_for.add(id(module))
        return found


def _learns(module: nn.Module) -> bool:
    """Has it trainable parameters of its own?"""
    own = module._parameters.values()
    return any(parameter is not None and parameter.requires_grad for parameter in own)
