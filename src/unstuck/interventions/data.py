"""The data that a loop gets: one batch over and over, the stored examples as they were, or all but some of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unstuck.interventions.base import Intervention

if TYPE_CHECKING:
    from torch import Tensor

    from unstuck.capture.trial.lab import Lab

LARGEST = 2**28
"""Numbers of a data set that are copied, at most."""


class FreezeBatch(Intervention, frozen=True):
    """Give the loop the data of its second step in every later one."""

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.frozen_batch import FrozenBatch

        FrozenBatch(lab)


class HoldOut(Intervention, frozen=True):
    """Keep a fifth of the training examples out, hold the weights from step `first` on, and score answers then.

    To the examples that were kept out, if `unseen`, else to those that were trained on.
    """

    first: int
    unseen: bool

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.held_out import HeldOut

        HeldOut(lab, self.first, self.unseen)


class KeepData(Intervention, frozen=True):
    """Give the arrays of data sets back their first values whenever a pass over a loader begins."""

    WORDS = "the stored examples put back before every pass"

    def apply(self, lab: Lab) -> None:
        from torch.utils.data import DataLoader

        from unstuck.capture.detect.stored_data import arrays_of

        first: dict[int, tuple[Any, dict[str, Tensor]]] = {}

        def beginning(original: Callable[..., Any]) -> Callable[..., Any]:
            def begin(loader: Any) -> Any:
                dataset = loader.dataset
                arrays = arrays_of(dataset)
                if id(dataset) not in first:
                    small = sum(array.numel() for array in arrays.values()) <= LARGEST
                    copies = {name: array.clone() for name, array in arrays.items()} if small else {}
                    first[id(dataset)] = dataset, copies
                for name, copy in first[id(dataset)][1].items():
                    if name in arrays and arrays[name].shape == copy.shape:
                        arrays[name].copy_(copy)
                return original(loader)

            return begin

        lab.wrap(DataLoader, "__iter__", beginning)
