"""A known-good optimizer in place of the script's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unstuck.interventions.base import Intervention

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from unstuck.capture.trial.lab import Lab


class UseAdam(Intervention, frozen=True):
    """Update the parameters of every optimizer as Adam would, at a constant rate, with the gradient clipped, and
    without weight decay. The script's own optimizer steps too, and what it did is undone."""

    rate: float = 1e-3
    norm: float = 1.0

    WORDS = "Adam at a constant learning rate of {0.rate:.3g}, gradients clipped to {0.norm:.3g}"

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.stand_ins.adam import Adam

        adam = Adam(self.rate, self.norm)
        waiting: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}

        def remember(optimizer: Optimizer) -> None:
            held = {id(p): p for group in optimizer.param_groups for p in group["params"] if p.grad is not None}
            waiting[id(optimizer)] = [
                (p, p.detach().clone(), p.grad.detach().to_dense().clone()) for p in held.values() if p.grad is not None
            ]

        lab.before_steps(remember)
        lab.after_steps(lambda optimizer: adam.step(waiting.pop(id(optimizer), [])))
