"""One batch, over and over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unstuck.interventions.base import Intervention

if TYPE_CHECKING:
    from unstuck.capture.trial.lab import Lab


class FreezeBatch(Intervention, frozen=True):
    """Give the loop the data of its second step in every later one."""

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.frozen_batch import FrozenBatch

        FrozenBatch(lab)
