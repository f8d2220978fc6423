"""One call of a model, until it is known what its output is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unstuck.capture.detect import graph
from unstuck.capture.detect.graph import Token
from unstuck.capture.measure.tensors import is_plain, reading
from unstuck.capture.preview.predicting import MOST_EXAMPLES, Compared, prediction

MOST_ELEMENTS = 2**18
"""Copied from an output; if one example has more, nothing is."""
MOST_UNCOPIED = 2**22
"""Elements of an output without a graph that is referenced until it is compared."""
MOST_TARGETS = 2**16


class Call:
    """A model returned. A loss is about this call if what it is given was made from its output."""

    def __init__(self, label: str, step: int, *, learning: bool, training: bool) -> None:
        self.label, self.step = label, step
        self.learning, self.training = learning, training
        self.output: Tensor | None = None
        """The first examples of it, in memory of our own."""
        self.compared: Compared | None = None
        self._token = Token()
        self._key = f"unstuck.call.{id(self)}"
        """Another watch of the same program marks the node too."""
        self._shape: torch.Size | None = None
        self._reference: Tensor | None = None
        self._place = 0

    def returned(self, output: Any) -> None:
        """Take what the model returned."""
        tensor = prediction(output)
        if tensor is None or not is_plain(tensor) or tensor.dim() == 0 or tensor.numel() == 0:
            return
        self._shape, self._place = tensor.shape, tensor.untyped_storage().data_ptr()
        node = graph.origin(tensor)
        if node is not None:
            node.metadata[self._key] = self._token
        elif tensor.numel() <= MOST_UNCOPIED:
            self._reference = tensor.detach()  # or its memory might be another's when a loss is computed
        rows = min(MOST_EXAMPLES, MOST_ELEMENTS * len(tensor) // tensor.numel())
        with reading():
            self.output = tensor.detach()[:rows].float().cpu().clone() if rows else None

    def compare(self, loss: str, source: Tensor, target: Tensor) -> bool:
        """A loss was given these: is it about this call? Only the first loss counts."""
        if self._shape is None or not self._is_source_of(source):
            return False
        if self.compared is None and not target.requires_grad:
            whole = source.numel() == self._shape.numel() and source.untyped_storage().data_ptr() == self._place
            with reading():
                first = target.detach().reshape(-1)[:MOST_TARGETS].cpu().clone()
                self.compared = Compared(loss, first, tuple(target.shape), tuple(source.shape) if whole else ())
        return True

    def settle(self) -> None:
        """No loss is about it any more."""
        self._reference = None

    def _is_source_of(self, source: Tensor) -> bool:
        if self._reference is not None:
            return source.grad_fn is None and source.untyped_storage().data_ptr() == self._place
        node = graph.origin(source)
        return node is not None and node.metadata.get(self._key) is self._token


def training_call(calls: Sequence[Call]) -> Call | None:
    """Of the first calls of a model the one that trains: the first whose output a loss received, or just the first."""
    return next((call for call in calls if call.compared is not None), calls[0] if calls else None)
