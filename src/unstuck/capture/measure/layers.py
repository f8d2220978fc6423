"""Tells how large the outputs of a model's modules are, in the order they ran."""

from __future__ import annotations

import torch

from unstuck.capture.detect.trail import Output
from unstuck.capture.measure.samples import short
from unstuck.capture.measure.tensors import may_measure, reading
from unstuck.capture.objects import Model
from unstuck.capture.watch import Watch
from unstuck.events import LayersRan

_MOST = 512
_MOST_MODELS = 32


class Layers:
    """Reads what the search for NaN has measured anyway: at the first steps, then ever more rarely."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._next: dict[str, int] = {}

    def ran(self, model: Model, outputs: list[Output]) -> None:
        """A model was called in training; `outputs` are those of the window so far."""
        windows, root = self._watch.clock.windows, model.module
        if root is None or windows < self._next.get(model.label, 0) or not may_measure():
            return
        if model.label not in self._next and len(self._next) >= _MOST_MODELS:
            return
        names = {id(module): (name, type(module).__name__) for name, module in root.named_modules() if name}
        found = [(names[key], each) for each in outputs if (key := id(each.module())) in names and each.size]
        measured = [(who, each.norm / each.size**0.5) for who, each in found[:_MOST] if each.norm is not None]
        if not measured:
            return
        self._next[model.label] = max(windows + 1, windows * 3 // 2)
        with reading():
            first = measured[0][1]
            sizes = torch.stack([size.to(first) for _, size in measured])
            self._watch.tell(
                LayersRan(
                    step=self._watch.clock.steps,
                    model=model.label,
                    names=tuple(name for (name, _), _ in measured),
                    kinds=tuple(kind for (_, kind), _ in measured),
                    rms=self._watch.scalars.row_later(sizes, short),
                )
            )
