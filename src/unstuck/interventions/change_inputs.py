"""Other inputs for the model, with the same targets."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from unstuck.interventions.base import Intervention

if TYPE_CHECKING:
    from unstuck.capture.trial.lab import Lab


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
