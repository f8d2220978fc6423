"""What models predict for batches that the program itself gives them again: a full batch, the first of an evaluation.

A model is never called for this: asking it about a batch of our own would run the program's code once more. Only a
trial may do that (`first_batch_probe.py`).
"""

from __future__ import annotations

from typing import Any

from unstuck.capture.measure.tensors import reading
from unstuck.capture.preview.calls import Call
from unstuck.capture.preview.predicting import reader_for
from unstuck.capture.window import Watch
from unstuck.events import Predicted

MOST_BATCHES = 16
"""Fingerprints remembered, in training and in evaluations each."""
MANY = 32
"""Predictions from which on the next one is recorded a tenth of the run later."""
LATER = 1.1


def is_due(step: int, recorded: int, last: int) -> bool:
    """Is it time for another prediction, with this many recorded and the last at this step?"""
    return recorded < MANY or step >= LATER * last


class _Batch:
    """A batch that may come again."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.count = self.last = 0
        self.first: Predicted | None = None
        """The first prediction, until there is a second."""


class RepeatedBatches:
    """Remembers what was predicted for a batch, and records it once the batch has come again."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._known: dict[Any, _Batch] = {}
        self._remembered: dict[bool, int] = {True: 0, False: 0}
        self._calls: list[tuple[_Batch, Call]] = []
        self._widths: dict[str, int] = {}
        """How many classes a model is known to tell apart."""

    def add(self, call: Call, fingerprint: tuple[float, ...]) -> None:
        """A model received the batch of this fingerprint."""
        key = (call.learning, call.label, fingerprint)
        batch = self._known.get(key)
        if batch is None and fingerprint and self._remembered[call.learning] < MOST_BATCHES:
            self._remembered[call.learning] += 1
            batch = self._known[key] = _Batch(len(self._known))
        if batch is not None and call.output is not None and is_due(call.step, batch.count, batch.last):
            self._calls.append((batch, call))

    def settle(self) -> None:
        """No loss is about the calls so far any more."""
        calls, self._calls = self._calls, []
        for batch, call in calls:
            event = self._read(batch, call)
            batch.count, batch.last = batch.count + 1, call.step
            if batch.count == 1:
                batch.first = event
                continue
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
            values = reader.values(output)
        return Predicted(
            step=call.step,
            model=call.label,
            batch=batch.number,
            kind=reader.kind,
            values=values,
            targets=reader.targets,
            training_mode=call.training,
            learning=call.learning,
        )
