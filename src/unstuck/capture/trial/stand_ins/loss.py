"""The loss that fits outputs and targets, in place of what the script calls backward on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unstuck.capture.trial.lab import Lab
from unstuck.capture.trial.stand_ins.boundary import Compared, boundary_of
from unstuck.capture.trial.stand_ins.fitting import fitting_loss


class StandInLoss:
    """Cross entropy for classes, binary cross entropy for yes and no, the squared error for numbers."""

    def __init__(self, lab: Lab) -> None:
        self._notes = lab.notes["loss"] = {
            "swapped": 0,
            "kind": "",
            "why": "it does not compare outputs with targets, one by one",
        }
        self._scale = 1.0
        boundary = boundary_of(lab)
        boundary.losses.append(self._instead)
        boundary.scores_whole = True  # what the script does to outputs for its loss is a part of that
        lab.wrap(torch.amp.GradScaler, "scale", self._scaling)

    def _scaling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: Any, outputs: Any) -> Any:
            self._scale = float(scaler.get_scale())
            return original(scaler, outputs)

        return scale

    def _instead(self, compared: Compared) -> Tensor | None:
        found = compared.fit(whole=True)
        if compared.inside:
            self._notes["why"] = "the model computes it itself"
            return None
        if found is None or not found.scores.requires_grad:
            self._notes["why"] = "its target does not fit what the model returns"
            return None
        self._notes |= {"swapped": self._notes["swapped"] + 1, "kind": str(found.kind), "why": ""}
        return fitting_loss(found) * self._scale
