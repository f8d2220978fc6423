"""Other options for the optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unstuck.interventions.base import Intervention

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from unstuck.capture.trial.lab import Lab


class SetOption(Intervention, frozen=True):
    """Set an option of every parameter group, such as eps, before each step."""

    name: str
    value: float

    WORDS = "{0.name} set to {0.value:.3g}"

    def apply(self, lab: Lab) -> None:
        def put(optimizer: Optimizer) -> None:
            for group in optimizer.param_groups:
                if self.name in group:
                    group[self.name] = self.value

        lab.before_steps(put)


class NoWeightDecay(Intervention, frozen=True):
    """Turn weight decay off."""

    WORDS = "no weight decay"

    def apply(self, lab: Lab) -> None:
        SetOption("weight_decay", 0.0).apply(lab)
