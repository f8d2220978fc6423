"""A known-good optimizer in place of the script's own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from unstuck.interventions.base import Intervention

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from unstuck.capture.trial.lab import Lab

BETAS, EPS = (0.9, 0.999), 1e-8


class UseAdam(Intervention, frozen=True):
    """Update the parameters of every optimizer as Adam would, at a constant rate, with the gradient clipped, and
    without weight decay. The script's own optimizer steps too, and what it did is undone."""

    rate: float = 1e-3
    norm: float = 1.0

    WORDS = "Adam at a constant learning rate of {0.rate:.3g}, gradients clipped to {0.norm:.3g}"

    def apply(self, lab: Lab) -> None:
        import torch

        waiting: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}
        states: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        counts: dict[int, int] = {}

        def remember(optimizer: Optimizer) -> None:
            held = {id(p): p for group in optimizer.param_groups for p in group["params"] if p.grad is not None}
            waiting[id(optimizer)] = [
                (p, p.detach().clone(), p.grad.detach().to_dense().clone()) for p in held.values() if p.grad is not None
            ]

        @torch.no_grad()
        def step_instead(optimizer: Optimizer) -> None:
            steps = waiting.pop(id(optimizer), [])
            size = math.sqrt(sum(float(gradient.float().norm()) ** 2 for _, _, gradient in steps))
            if not math.isfinite(size):
                return
            scale = min(1.0, self.norm / (size + 1e-6))
            for parameter, before, gradient in steps:
                key = id(parameter)
                if key not in states:
                    states[key] = parameter, torch.zeros_like(before), torch.zeros_like(before)
                _, mean, square = states[key]
                counts[key] = counts.get(key, 0) + 1
                mean.mul_(BETAS[0]).add_(gradient, alpha=scale * (1 - BETAS[0]))
                square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=scale**2 * (1 - BETAS[1]))
                root = (square / (1 - BETAS[1] ** counts[key])).sqrt_().add_(EPS)
                parameter.copy_(before.addcdiv_(mean, root, value=-self.rate / (1 - BETAS[0] ** counts[key])))

        lab.before_steps(remember)
        lab.after_steps(step_instead)
