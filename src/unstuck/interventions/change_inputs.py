"""Other inputs for the model, with the same targets."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from unstuck.interventions.base import Intervention

if TYPE_CHECKING:
    from torch import Tensor, nn

    from unstuck.capture.trial.lab import Arguments, Lab


class Inputs(StrEnum):
    """What the model is given instead."""

    ZEROS = "zeros"
    SHUFFLED = "shuffled"
    """Those of other examples."""
    NOISE = "noise"
    STANDARDISED = "standardised"
    """The same with mean 0 and deviation 1."""


class ChangeInputs(Intervention, frozen=True):
    """Give the model other inputs, and the loss the same targets."""

    how: Inputs

    WORDS = "inputs {0.how}"

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.changed_inputs import ChangedInputs

        ChangedInputs(lab, self.how)


class Layout(StrEnum):
    """The axes that the numbers of an input really have, one after the other."""

    CHANNELS_LAST = "[N, H, W, C]"
    ROWS_FIRST = "[N, H, C, W]"
    FEATURES_FIRST = "[N, F, T]"


class RestoreLayout(Intervention, frozen=True):
    """Read inputs of models with the axes that they really have, and permute them instead."""

    layout: Layout

    WORDS = "the inputs read as {0.layout} and permuted"

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.lab import is_data, map_tensors

        def change(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
            given = map_tensors((args, kwargs), lambda t: _read(self.layout, t) if is_data(t) else t)
            return tuple(given[0]), dict(given[1])

        lab.change_calls(change)


def _read(layout: Layout, tensor: Tensor) -> Tensor:
    if layout is Layout.FEATURES_FIRST:
        if tensor.dim() != 3:
            return tensor
        count, length, features = tensor.shape
        return tensor.reshape(count, features, length).transpose(1, 2)
    if tensor.dim() != 4:
        return tensor
    count, channels, height, width = tensor.shape
    if layout is Layout.CHANNELS_LAST:
        return tensor.reshape(count, height, width, channels).permute(0, 3, 1, 2)
    return tensor.reshape(count, height, channels, width).transpose(1, 2)
