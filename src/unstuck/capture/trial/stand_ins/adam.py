"""Adam with a constant rate and clipped gradients, for parameters that no optimizer of torch should step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

BETAS, EPS = (0.9, 0.999), 1e-8


class Adam:
    """Its state is kept for each parameter."""

    def __init__(self, rate: float = 1e-3, norm: float = 1.0) -> None:
        self._rate, self._norm = rate, norm
        self._states: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self._counts: dict[int, int] = {}

    @torch.no_grad()
    def step(self, steps: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
        """Of parameters, from these values, along these gradients. Gradients that are not finite change nothing."""
        size = math.sqrt(sum(float(gradient.float().norm()) ** 2 for _, _, gradient in steps))
        if not math.isfinite(size):
            return
        scale = min(1.0, self._norm / (size + 1e-6))
        for parameter, before, gradient in steps:
            key = id(parameter)
            if key not in self._states:
                self._states[key] = parameter, torch.zeros_like(before), torch.zeros_like(before)
            _, mean, square = self._states[key]
            self._counts[key] = self._counts.get(key, 0) + 1
            mean.mul_(BETAS[0]).add_(gradient, alpha=scale * (1 - BETAS[0]))
            square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=scale**2 * (1 - BETAS[1]))
            root = (square / (1 - BETAS[1] ** self._counts[key])).sqrt_().add_(EPS)
            parameter.copy_(before.addcdiv(mean, root, value=-self._rate / (1 - BETAS[0] ** self._counts[key])))
