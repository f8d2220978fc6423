"""What models make of batches that the program itself gives them again: a full batch, the first one of an evaluation.

A model is never called for this: to ask it about a batch of our own would run the program's code once more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unstuck.capture.predicting import MOST_EXAMPLES, prediction, reader_for
from unstuck.capture.tensors import is_plain, is_whole, may_measure, reading
from unstuck.capture.watch import Watch
from unstuck.events import Predicted

MOST_BATCHES = 16
"""Waited for, in training and in evaluations each."""
MOST_ELEMENTS = 2**18
"""Of an output; if one example has more, nothing is kept."""
MANY = 32
"""Looks, from which on the next one is a tenth of the run later."""
LATER = 1.1
CLASS_LOSSES = ("cross_entropy", "nll_loss")


class _Batch:
    """One that may come again."""

    def __init__(self, label: str, number: int) -> None:
        self.label, self.number = label, number
        self.looks = self.last = 0
        self.first: Predicted | None = None
        """The first look, until there is a second."""
        self.target: Tensor | None = None
        self.of_classes = False

    def is_time(self, step: int) -> bool:
        return self.looks < MANY or step >= LATER * self.last


class _Look:
    """An output whose target is not known yet."""

    def __init__(self, batch: _Batch, step: int, output: Tensor, training: bool) -> None:
        self.batch, self.step, self.output, self.training = batch, step, output, training

    def told(self) -> Predicted:
        batch = self.batch
        reader = reader_for(self.output, batch.target, batch.of_classes)
        snapshot = reader.snapshot(self.step, self.output)
        return Predicted(
            step=self.step,
            model=batch.label,
            batch=batch.number,
            kind=reader.kind,
            classes=reader.classes,
            values=snapshot.values,
            confidence=snapshot.confidence,
            targets=reader.targets,
            training_mode=self.training,
        )


class Recurring:
    """Keeps what was predicted for a batch, and tells it once the batch has come again."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._known: dict[Any, _Batch] = {}
        self._waiting: dict[bool, int] = {True: 0, False: 0}
        self._open: _Look | None = None

    def seen(self, label: str, fingerprint: tuple[float, ...], module: nn.Module, output: Any) -> None:
        """A model was given the batch of this fingerprint."""
        self.settle()
        learning = torch.is_grad_enabled() and module.training
        key = (learning, label, fingerprint)
        batch = self._known.get(key)
        if batch is None and fingerprint and self._waiting[learning] < MOST_BATCHES:
            self._waiting[learning] += 1
            batch = self._known[key] = _Batch(label, len(self._known))
        step = self._watch.clock.steps
        if batch is None or not batch.is_time(step) or not may_measure():
            return
        with reading():
            kept = _kept(prediction(output))
        if kept is not None:
            self._open = _Look(batch, step, kept, module.training)

    def compared(self, loss: str, target: Tensor) -> None:
        """A loss was given a target: that of the batch seen last, if it is the first since."""
        batch = self._open.batch if self._open is not None else None
        if batch is None or batch.target is not None or target.requires_grad or not may_measure():
            return
        if (is_plain(target) or is_whole(target)) and 0 < target.numel() <= MOST_ELEMENTS:
            with reading():
                batch.target = target.detach().cpu().clone()
            batch.of_classes = loss in CLASS_LOSSES

    def settle(self) -> None:
        """No target comes for the batch seen last any more."""
        look, self._open = self._open, None
        if look is None:
            return
        with reading():
            event = look.told()
        batch = look.batch
        batch.looks, batch.last = batch.looks + 1, look.step
        if batch.looks == 1:
            batch.first = event
            return
        if batch.first is not None:
            self._watch.tell(batch.first)
            batch.first = None
        self._watch.tell(event)


def _kept(output: Tensor | None) -> Tensor | None:
    """The first examples of an output, in memory of our own."""
    if output is None or not is_plain(output) or output.dim() == 0 or output.numel() == 0:
        return None
    rows = min(MOST_EXAMPLES, MOST_ELEMENTS * len(output) // output.numel())
    return output.detach()[:rows].float().cpu().clone() if rows else None
