"""Tests of the model, its batch and its loop next to its training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unstuck.interventions.base import Intervention

if TYPE_CHECKING:
    from unstuck.capture.trial.lab import Lab


class ProbeModel(Intervention, frozen=True):
    """At the first backward, test whether outputs depend on other examples or on later elements.

    The note `probe` has the answer, the fields of `events.Trial`.
    """

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.model_probe import Probe

        Probe(lab)


class ProbeBatch(Intervention, frozen=True):
    """At the first backwards, test what must hold between predictions, targets and inputs.

    The note `relations` has the answers, of `findings.relations`.
    """

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.relations.batch_probe import BatchProbe

        BatchProbe(lab)


class ProbeLoop(Intervention, frozen=True):
    """Put weights back after every step, and ask the loop for its loss with weights or inputs changed a little.

    Goes after `FreezeBatch`. The note `relations` has the answers, of `findings.relations`.
    """

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.relations.loop_probe import LoopProbe
        from unstuck.capture.trial.relations.loop_relations import examine

        LoopProbe(lab, examine)


class ReadLayers(Intervention, frozen=True):
    """From step `first` on, keep the weights as they are, and gather what each module gives for each example.

    The note `layers` has the answer: the fields of `experiments.layers.Reading`.
    """

    first: int

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.layer_probe import LayerProbe

        LayerProbe(lab, self.first)


class TakeFingerprints(Intervention, frozen=True):
    """From step `first` to step `last`, note a fingerprint of every tensor of the training; of losses, at every step.

    The note `fingerprints` has them, of `findings.fingerprints`.
    """

    first: int
    last: int

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.fingerprints import Fingerprints

        Fingerprints(lab, self.first, self.last)


class FollowExamples(Intervention, frozen=True):
    """In the third iteration, follow each example through all operations to where it meets others.

    The note `mixing` has what was found, of `findings.mixing`.
    """

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.axes.example_probe import ExampleProbe

        ExampleProbe(lab)


class ReadData(Intervention, frozen=True):
    """Find the data sets of the program within a part of so many seconds, and read them when the trial ends.

    The note `data` has what they hold, of `findings.data_sets`.
    """

    seconds: float

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.data_sets.probe import DataProbe

        DataProbe(lab, self.seconds)
