"""Tests of the model next to its training."""

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
