"""How well the target can be read from the inputs and from the output of every module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unstuck.interventions.base import Intervention

if TYPE_CHECKING:
    from unstuck.capture.trial.lab import Lab


class ReadLayers(Intervention, frozen=True):
    """From step `first` on, keep the weights as they are, and gather what each module gives for each example.

    The note `layers` has the answer: the fields of `experiments.layers.Reading`.
    """

    first: int

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.layer_probe import LayerProbe

        LayerProbe(lab, self.first)
