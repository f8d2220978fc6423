"""Shows, in a run, the first batch as each model received it, and the filters that look at it."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, nn

from unstuck.capture.measure.tensors import is_plain, is_whole, may_measure, reading
from unstuck.capture.preview.calls import Call
from unstuck.capture.preview.predicting import MOST_EXAMPLES, Compared
from unstuck.capture.preview.showing import MOST_FILTERS, as_pictures, filters, first_layer, labelled, shown
from unstuck.capture.preview.vocabulary import class_names, words_for
from unstuck.capture.window import Watch
from unstuck.events import BatchShown, FiltersShown
from unstuck.events.preview import TensorShown

MOST_MODELS = 3
MOST_INPUTS = 4
LARGEST = 2**24
"""Tensors with more elements than this are named, not shown."""
LARGEST_FILTER = 2**14
LOOKS = (10, 100, 1000, 10_000, 100_000, 1_000_000)
"""Steps after which filters are shown again, before they are at the end."""


class _Filters:
    """The first layer of a model, which is not kept alive."""

    def __init__(self, model: str, name: str, layer: nn.Module, shape: tuple[int, int, int]) -> None:
        self._model, self._name, self._shape = model, name, shape
        self.layer = weakref.ref(layer)
        self._kind, self._count = type(layer).__name__, len(_weight(layer))
        self._start = self._now = _weight(layer)[:MOST_FILTERS].clone()
        self._step, self._told = 0, -1

    def look(self, step: int) -> None:
        """Keep them as they are now: a model may be gone when the run ends."""
        layer = self.layer()
        if layer is not None and is_plain(layer._parameters.get("weight")) and may_measure():
            with reading():
                self._now, self._step = _weight(layer)[:MOST_FILTERS].clone(), step

    def told(self) -> FiltersShown | None:
        """As they were at the last look, unless that was told."""
        if self._step == self._told:
            return None
        self._told = self._step
        with reading():
            now, began = self._now, float(self._start.norm())
            moved = float((now - self._start).norm()) / began if now.shape == self._start.shape and began else None
            return FiltersShown(
                step=self._step,
                model=self._model,
                layer=self._name,
                kind=self._kind,
                count=self._count,
                filters=filters(now, self._shape, self._step),
                moved=moved,
            )


class Display:
    """Draws when a model is called, and tells it when the window ends and targets are known."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._seen: set[str] = set()
        self._drawn: dict[str, tuple[Call, list[TensorShown]]] = {}
        """Of the models called in this window for the first time."""
        self._filters: list[_Filters] = []
        self.pending = False
        """Is there anything to do at the end of a window?"""
        self._looks = iter(LOOKS)
        self._next = next(self._looks)

    def wants(self, label: str) -> bool:
        """Has this model not been seen to return yet?"""
        return label not in self._seen and len(self._seen) < MOST_MODELS

    def received(self, call: Call, module: nn.Module, given: list[tuple[str, Tensor]], *, again: bool = False) -> None:
        """A model that is wanted is called with these; `again`: with these too."""
        self.pending = True
        drawn = self._drawn[call.label][1] if again and call.label in self._drawn else []
        self._drawn[call.label] = (call, drawn)
        with reading():
            for name, tensor in given[: MOST_INPUTS - len(drawn)]:
                if not tensor.is_nested:
                    drawn.append(_shown(name, tensor, module))
                    self._keep_filters(call.label, module, tensor)

    def returned(self, label: str) -> None:
        """It was, and did not raise."""
        self._seen.add(label)

    def _keep_filters(self, label: str, module: nn.Module, tensor: Tensor) -> None:
        """Before the first step has changed them."""
        if not (is_plain(tensor) or is_whole(tensor)) or not tensor.dim() or not tensor.numel():
            return
        pictures = as_pictures(tensor[:1])
        found = first_layer(module, tuple(pictures.shape[1:])) if pictures is not None else None
        if found is None or any(known.layer() is found[1] for known in self._filters):
            return
        weight = found[1]._parameters["weight"]
        if weight is not None and weight[0].numel() <= LARGEST_FILTER:
            self._filters.append(_Filters(label, *found))
            self._tell_filters()

    def window_ended(self) -> None:
        """A sampled window ended."""
        self._tell_batches()
        for part in self._filters:
            part.look(self._watch.window.steps)
        if self._filters and self._watch.window.steps >= self._next:
            self._next = next((step for step in self._looks if step > self._watch.window.steps), 1 << 62)
            self._tell_filters()
        self.pending = bool(self._filters)

    def finish(self) -> None:
        """The run ended."""
        self._tell_batches()
        for part in self._filters:
            part.look(self._watch.window.steps)
        self._tell_filters()

    def _tell_batches(self) -> None:
        drawn, self._drawn = self._drawn, {}
        for label, (call, tensors) in drawn.items():
            if tensors:
                names = class_names()
                words = _words(call.compared, names)
                told = [labelled(one, words) if _is_of(one, call) else one for one in tensors]
                self._watch.tell(BatchShown(model=label, tensors=tuple(told), class_names=names))

    def _tell_filters(self) -> None:
        for part in self._filters:
            event = part.told()
            if event is not None:
                self._watch.tell(event)


def _shown(name: str, tensor: Tensor, module: nn.Module) -> TensorShown:
    if (is_plain(tensor) or is_whole(tensor)) and 0 < tensor.numel() <= LARGEST:
        return shown(name, tensor, lambda rows: words_for(rows, module))
    return TensorShown(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape))


def _is_of(tensor: TensorShown, call: Call) -> bool:
    """Does each of its examples have a target? If it is one number each, it may be the target itself."""
    return call.compared is not None and len(tensor.shape) > 1 and call.compared.shape[:1] == tensor.shape[:1]


def _weight(layer: nn.Module) -> Tensor:
    weight: Any = layer._parameters["weight"]
    assert isinstance(weight, Tensor)
    return weight.detach()


def _words(compared: Compared | None, names: tuple[str, ...]) -> list[str]:
    """What each example should have been, where it has one target."""
    if compared is None or not compared.is_one_each(1):
        return []
    values = compared.target[:MOST_EXAMPLES].tolist()
    if compared.target.is_floating_point():
        return [f"{value:.4g}" for value in values]
    fits = compared.of_classes and len(compared.source) == 2 and compared.source[1] == len(names)
    return [names[value] if fits and 0 <= value < len(names) else str(int(value)) for value in values]
