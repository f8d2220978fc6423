"""What models make of batches that the program itself gives them again: a full batch, the first one of an evaluation.

A model is never called for this: to ask it about a batch of our own would run the program's code once more.
"""

from __future__ import annotations

from typing import Any

from unstuck.capture.measure.tensors import reading
from unstuck.capture.preview.calls import Call
from unstuck.capture.preview.predicting import reader_for
from unstuck.capture.window import Watch
from unstuck.events import Predicted

MOST_BATCHES = 16
"""Waited for, in training and in evaluations each."""
MANY = 32
"""Looks, from which on the next one is a tenth of the run later."""
LATER = 1.1


class _Batch:
    """One that may come again."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.looks = self.last = 0
        self.first: Predicted | None = None
        """The first look, until there is a second."""

    def is_time(self, step: int) -> bool:
        return self.looks < MANY or step >= LATER * self.last


class Recurring:
    """Keeps what was predicted for a batch, and tells it once the batch has come again."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._known: dict[Any, _Batch] = {}
        self._waiting: dict[bool, int] = {True: 0, False: 0}
        self._calls: list[tuple[_Batch, Call]] = []
        self._widths: dict[str, int] = {}
        """How many classes a model is known to tell apart."""

    def seen(self, call: Call, fingerprint: tuple[float, ...]) -> None:
        """A model was given the batch of this fingerprint."""
        key = (call.learning, call.label, fingerprint)
        batch = self._known.get(key)
        if batch is None and fingerprint and self._waiting[call.learning] < MOST_BATCHES:
            self._waiting[call.learning] += 1
            batch = self._known[key] = _Batch(len(self._known))
        if batch is not None and batch.is_time(call.step) and call.output is not None:
            self._calls.append((batch, call))

    def settle(self) -> None:
        """No loss is about the calls so far any more."""
        calls, self._calls = self._calls, []
        for batch, call in calls:
            self._look(batch, call)

    def _look(self, batch: _Batch, call: Call) -> None:
        event = self._read(batch, call)
        batch.looks, batch.last = batch.looks + 1, call.step
        if batch.looks == 1:
            batch.first = event
            return
        if batch.first is not None:
            self._watch.tell(batch.first)
            batch.first = None
        self._watch.tell(event)

    def _read(self, batch: _Batch, call: Call) -> Predicted:
        output, compared = call.output, call.compared
        assert output is not None
        width = output.shape[1] if output.dim() == 2 else 0
        if compared is not None and compared.of_classes:
            self._widths[call.label] = width
        with reading():
            reader = reader_for(output, compared, width > 1 and self._widths.get(call.label) == width)
            snapshot = reader.snapshot(call.step, output)
        return Predicted(
            step=call.step,
            model=call.label,
            batch=batch.number,
            kind=reader.kind,
            classes=reader.classes,
            values=snapshot.values,
            confidence=snapshot.confidence,
            targets=reader.targets,
            training_mode=call.training,
            learning=call.learning,
        )
