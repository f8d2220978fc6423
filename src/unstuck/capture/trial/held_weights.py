"""Weights that are held from some step on: optimizers step, and what they have changed is put back."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from unstuck.capture.trial.lab import Lab

LARGEST = 2**27
"""Elements of a weight that is copied, at most."""


class HeldWeights:
    """Those of all optimizers that step from step `first` on."""

    def __init__(self, lab: Lab, first: int) -> None:
        self._lab, self._first = lab, first
        self.weights: dict[int, tuple[Tensor, Tensor]] = {}
        """By their ids: those that optimizers have, and what they were."""
        self.moved: set[int] = set()
        """The ids of those that have had a gradient since."""
        lab.before_steps(self._keep)
        lab.after_steps(self._put_back)

    @property
    def are_held(self) -> bool:
        """Is it time?"""
        return self._lab.steps >= self._first

    def _keep(self, optimizer: Optimizer) -> None:
        if not self.are_held:
            return
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if id(weight) not in self.weights and weight.numel() <= LARGEST:
                    self.weights[id(weight)] = weight, weight.detach().clone()
                if weight.grad is not None and id(weight) not in self.moved and bool(weight.grad.any()):
                    self.moved.add(id(weight))

    def _put_back(self, optimizer: Optimizer) -> None:
        if not self.are_held:
            return
        with torch.no_grad():
            for weight, before in self.weights.values():
                weight.copy_(before)
