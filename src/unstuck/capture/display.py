"""Shows, in a run, the first batch as each model received it, and the filters that look at it."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, nn

from unstuck.capture.predicting import MOST_EXAMPLES
from unstuck.capture.showing import MOST_FILTERS, as_pictures, filters, first_layer, labelled, shown
from unstuck.capture.tensors import is_plain, is_whole, may_measure, reading
from unstuck.capture.vocabulary import class_names, looked_up
from unstuck.capture.watch import Watch
from unstuck.events import BatchShown, FiltersShown
from unstuck.exhibits import TensorShown

MOST_MODELS = 3
MOST_INPUTS = 4
LARGEST = 2**24
"""Tensors with more elements than this are named, not shown."""
LOOKS = (10, 100, 1000, 10_000, 100_000, 1_000_000)
"""Steps after which filters are shown again, before they are at the end."""


class _Filters:
    """The first layer of a model, which is not kept alive."""

    def __init__(self, model: str, name: str, layer: nn.Module, shape: tuple[int, int, int]) -> None:
        self._model, self._name, self._shape = model, name, shape
        self._layer = weakref.ref(layer)
        self._start = _weight(layer)[:MOST_FILTERS].clone()
        self._told = -1

    def seen(self, step: int) -> FiltersShown | None:
        """As they are now; None if that was told, or the model is gone."""
        layer = self._layer()
        if layer is None or step == self._told or not may_measure():
            return None
        self._told = step
        with reading():
            weight = _weight(layer)
            now, began = weight[:MOST_FILTERS], float(self._start.norm())
            moved = float((now - self._start).norm()) / began if now.shape == self._start.shape and began else None
            return FiltersShown(
                step=step,
                model=self._model,
                layer=self._name,
                kind=type(layer).__name__,
                count=len(weight),
                filters=filters(now, self._shape, step),
                moved=moved,
            )


class Display:
    """Draws while the model is called, and tells it when the window ends and targets are known."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._seen: set[str] = set()
        self._tensors: dict[str, list[TensorShown]] = {}
        """Of the models called in this window for the first time."""
        self._filters: list[_Filters] = []
        self._looks = iter(LOOKS)
        self._next = next(self._looks)

    def wants(self, label: str) -> bool:
        """Is this model called for the first time?"""
        return label not in self._seen and len(self._seen) < MOST_MODELS

    def received(self, label: str, module: nn.Module, given: list[tuple[str, Tensor]]) -> None:
        """A model that is wanted is called with these."""
        kept = self._tensors.setdefault(label, [])
        with reading():
            for name, tensor in given[: MOST_INPUTS - len(kept)]:
                kept.append(_shown(name, tensor))
                if is_plain(tensor) or is_whole(tensor):
                    self._keep_filters(label, module, tensor)

    def called(self, label: str) -> None:
        """It has been called."""
        self._seen.add(label)

    def _keep_filters(self, label: str, module: nn.Module, tensor: Tensor) -> None:
        """Before the first step has changed them."""
        pictures = as_pictures(tensor[:1]) if tensor.dim() and len(tensor) else None
        layer = first_layer(module, tuple(pictures.shape[1:])) if pictures is not None else None
        if layer is not None and is_plain(layer[1]._parameters.get("weight")):
            self._filters.append(_Filters(label, *layer))
            self._tell_filters()

    def compared(self, target: Tensor) -> None:
        """A loss was given a target."""
        if not self._tensors or not (is_plain(target) or is_whole(target)) or not target.dim() or not may_measure():
            return
        size = len(target)
        if target.numel() != size or target.requires_grad:
            return
        with reading():
            words = _words(target)
        for label, held in self._tensors.items():
            # An argument of one number each may be the target itself, of a model that computes its loss.
            self._tensors[label] = [
                labelled(one, words) if one.examples == size and len(one.shape) > 1 else one for one in held
            ]

    def window_ended(self) -> None:
        """A step was taken."""
        self.tell()
        if self._filters and self._watch.clock.steps >= self._next:
            self._next = next((step for step in self._looks if step > self._watch.clock.steps), 1 << 62)
            self._tell_filters()

    def finish(self) -> None:
        """The run ended."""
        self.tell()
        self._tell_filters()

    def tell(self) -> None:
        """Tell what was received."""
        drawn, self._tensors = self._tensors, {}
        for label, tensors in drawn.items():
            if tensors:
                names = class_names()
                self._watch.tell(BatchShown(model=label, tensors=tuple(tensors), class_names=names))

    def _tell_filters(self) -> None:
        for part in self._filters:
            event = part.seen(self._watch.clock.steps)
            if event is not None:
                self._watch.tell(event)


def _shown(name: str, tensor: Tensor) -> TensorShown:
    if (is_plain(tensor) or is_whole(tensor)) and 0 < tensor.numel() <= LARGEST:
        return shown(name, tensor, looked_up)
    return TensorShown(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape))


def _weight(layer: nn.Module) -> Tensor:
    weight: Any = layer._parameters["weight"]
    assert isinstance(weight, Tensor)
    return weight.detach()


def _words(target: Tensor) -> list[str]:
    names = class_names()
    values = target.reshape(-1)[:MOST_EXAMPLES].tolist()
    if target.is_floating_point():
        return [f"{value:.4g}" for value in values]
    return [names[value] if 0 <= value < len(names) else str(int(value)) for value in values]
