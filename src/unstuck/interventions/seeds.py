"""What random generators begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unstuck.interventions.base import Intervention

if TYPE_CHECKING:
    from unstuck.capture.trial.lab import Lab


class Seed(Intervention, frozen=True):
    """Seed every generator. Number 0 leaves the seeds that the script sets; other numbers shift them."""

    number: int = 0

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.seeding import seed

        seed(lab, self.number)


class OwnSeeds(Intervention, frozen=True):
    """Seed nothing that the script does not seed: generators begin as in any new process."""

    def apply(self, lab: Lab) -> None:
        import random
        import sys

        import torch

        # A fork inherits the state of its parent.
        random.seed()
        torch.seed()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()
