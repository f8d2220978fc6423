"""Shows the first batch as each model received it, and the filters of the layer that receives its pictures."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from unstuck.capture.measure.tensors import is_plain, is_whole, may_measure, reading
from unstuck.capture.preview.calls import Call, training_call
from unstuck.capture.preview.predicting import MOST_EXAMPLES, Compared
from unstuck.capture.preview.showing import MOST_FILTERS, as_pictures, filters, first_layer, labelled, shown
from unstuck.capture.preview.vocabulary import Ids, class_names, decoded, words_for
from unstuck.capture.window import Watch
from unstuck.events import BatchShown, FiltersShown, TensorShown

MOST_MODELS = 3
MOST_CALLS = 3
"""Calls of one model that are drawn in one window, until a loss says which of them trains."""
MOST_INPUTS = 4
LARGEST = 2**24
"""Tensors with more elements than this are named, not shown."""
LARGEST_FILTER = 2**14
LOOKS = (10, 100, 1000, 10_000, 100_000, 1_000_000)
"""Steps after which filters are shown again; they are also shown at the end."""


class _Filters:
    """The first layer of a model. It does not keep the model alive."""

    def __init__(self, model: str, name: str, layer: nn.Module, shape: tuple[int, int, int]) -> None:
        self._model, self._name, self._shape = model, name, shape
        self.layer = weakref.ref(layer)
        self._kind, self._count = type(layer).__name__, len(_weight(layer))
        self._start = self._now = _weight(layer)[:MOST_FILTERS].clone()
        self._step, self._recorded = 0, -1

    def look(self, step: int) -> None:
        """Copy them as they are now: the model may be gone when the run ends."""
        layer = self.layer()
        if layer is not None and is_plain(layer._parameters.get("weight")) and may_measure():
            with reading():
                self._now, self._step = _weight(layer)[:MOST_FILTERS].clone(), step

    def event(self) -> FiltersShown | None:
        """As they were at the last look, unless that is on record."""
        if self._step == self._recorded:
            return None
        self._recorded = self._step
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


class _Draft:
    """A call as it was drawn, until it is known whether it trains."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.tensors: list[TensorShown] = []
        self.has_returned = False


class FirstBatch:
    """Draws what a model is called with, and records it when the window ends and targets are known."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._recorded: set[str] = set()
        self._drafts: dict[str, list[_Draft]] = {}
        """Of the models called in this window for the first time."""
        self._filters: list[_Filters] = []
        self._looks = iter(LOOKS)
        self._next = next(self._looks)

    @property
    def pending(self) -> bool:
        """Is there anything to do at the end of a window?"""
        return bool(self._drafts or self._filters)

    def wants(self, label: str) -> bool:
        """Is the first training call of this model still looked for?"""
        drafts = self._drafts.get(label)
        if drafts is None:
            return label not in self._recorded and len(self._recorded | self._drafts.keys()) < MOST_MODELS
        if not drafts[-1].has_returned:
            return True
        return len(drafts) < MOST_CALLS and all(draft.call.compared is None for draft in drafts)

    def draw(self, call: Call, module: nn.Module, inputs: list[tuple[str, Tensor]], *, more: bool = False) -> None:
        """A model is called with these; `more`: these are further arguments of the same call."""
        drafts = self._drafts.setdefault(call.label, [])
        if not more:
            drafts[:] = [draft for draft in drafts if draft.has_returned]
            drafts.append(_Draft(call))
            if self._watch.probe is not None:
                self._watch.probe.is_first_batch(call, module)
        if not drafts or drafts[-1].call is not call:
            return
        tensors = drafts[-1].tensors
        with reading():
            for name, tensor in inputs[: MOST_INPUTS - len(tensors)]:
                if not tensor.is_nested:
                    tensors.append(self._shown(name, tensor, module))
                    self._add_filters(call.label, module, tensor)

    def returned(self, call: Call) -> None:
        """The call did not raise."""
        for draft in self._drafts.get(call.label, ()):
            draft.has_returned |= draft.call is call

    def _shown(self, name: str, tensor: Tensor, module: nn.Module) -> TensorShown:
        def decode(rows: Ids) -> list[str]:
            # Only in a trial may code of the program run once more.
            return (decoded(rows) if self._watch.probe is not None else []) or words_for(rows, module)

        if (is_plain(tensor) or is_whole(tensor)) and 0 < tensor.numel() <= LARGEST:
            return shown(name, tensor, decode)
        return TensorShown(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape))

    def _add_filters(self, label: str, module: nn.Module, tensor: Tensor) -> None:
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
            self._record_filters()

    def window_ended(self) -> None:
        """A sampled window ended."""
        self._record_batches()
        steps = self._watch.window.steps
        for part in self._filters:
            part.look(steps)
        if self._filters and steps >= self._next:
            self._next = next((step for step in self._looks if step > steps), 1 << 62)
            self._record_filters()

    def finish(self) -> None:
        """The run ended."""
        self._record_batches()
        for part in self._filters:
            part.look(self._watch.window.steps)
        self._record_filters()

    def _record_batches(self) -> None:
        all_drafts, self._drafts = self._drafts, {}
        for label, drafts in all_drafts.items():
            if any(draft.has_returned for draft in drafts):
                self._recorded.add(label)
            call = training_call([draft.call for draft in drafts])
            tensors = next((draft.tensors for draft in drafts if draft.call is call), [])
            if call is not None and tensors:
                names = class_names()
                words = _target_words(call.compared, names)
                drawn = [labelled(one, words) if _has_targets(one, call) else one for one in tensors]
                self._watch.tell(BatchShown(model=label, tensors=tuple(drawn), class_names=names))

    def _record_filters(self) -> None:
        for part in self._filters:
            event = part.event()
            if event is not None:
                self._watch.tell(event)


def _has_targets(tensor: TensorShown, call: Call) -> bool:
    """Does each of its examples have a target? If it is one number each, it may be the target itself."""
    return call.compared is not None and len(tensor.shape) > 1 and call.compared.shape[:1] == tensor.shape[:1]


def _weight(layer: nn.Module) -> Tensor:
    weight: Any = layer._parameters["weight"]
    assert isinstance(weight, Tensor)
    return weight.detach()


def _target_words(compared: Compared | None, names: Sequence[str]) -> list[str]:
    """The target of each example, where it has one."""
    if compared is None or not compared.is_one_each(1):
        return []
    values = compared.target[:MOST_EXAMPLES].tolist()
    if compared.target.is_floating_point():
        return [f"{value:.4g}" for value in values]
    fits = compared.of_classes and len(compared.source) == 2 and compared.source[1] == len(names)
    return [names[value] if fits and 0 <= value < len(names) else str(int(value)) for value in values]
