"""Parts known to work in place of the script's own: examples, model, loss, update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unstuck.interventions.base import Intervention

if TYPE_CHECKING:
    from unstuck.capture.trial.lab import Lab


class ScoreAnswers(Intervention, frozen=True):
    """Change nothing, and note what the answers of the model are worth, whatever the loss is."""

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.stand_ins.boundary import boundary_of

        boundary_of(lab)


class SwapUpdate(Intervention, frozen=True):
    """Update parameters by Adam at 1e-3, by the clipped gradient of the losses since the last step."""

    WORDS = "our update: gradients cleared, clipped to 1, Adam at 0.001"

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.stand_ins.update import StandInUpdate

        StandInUpdate(lab)


class SwapModel(Intervention, frozen=True):
    """Return the output of a model of ours, which trains by itself, in place of that of the script's."""

    WORDS = "our model"

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.stand_ins.model import StandInModel

        StandInModel(lab)


class SwapData(Intervention, frozen=True):
    """Give the model inputs of ours, and the loss targets that can be learned from them."""

    WORDS = "our data"

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.stand_ins.examples import StandInExamples

        StandInExamples(lab)


class SwapLoss(Intervention, frozen=True):
    """Call backward on the loss that fits outputs and targets, in place of the script's own."""

    WORDS = "our loss"

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.stand_ins.loss import StandInLoss

        StandInLoss(lab)
