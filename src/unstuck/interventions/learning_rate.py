"""Other learning rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unstuck.interventions.base import Intervention

if TYPE_CHECKING:
    from unstuck.capture.trial.lab import Lab


class SetRate(Intervention, frozen=True):
    """Multiply every learning rate. The script's own schedule continues underneath."""

    factor: float

    WORDS = "the learning rate times {0.factor:.3g}"

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.learning_rates import change_rates

        change_rates(lab, lambda optimizer, group, own: own * self.factor)


class SweepRate(Intervention, frozen=True):
    """Raise the rate of every group in proportion from step to step, from `first` to `last` times its own.

    The script's schedule is overridden. The run ends when the loss diverges.
    """

    first: float
    last: float
    steps: int

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.learning_rates import Sweep

        Sweep(lab, self.first, self.last, self.steps)


class NoSchedule(Intervention, frozen=True):
    """Leave every learning rate at the value the optimizer was built with."""

    WORDS = "the learning rate constant at its first value"

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.learning_rates import InitialRates, change_rates

        initial = InitialRates(lab)
        change_rates(lab, lambda optimizer, group, own: initial.rates(optimizer)[group])
