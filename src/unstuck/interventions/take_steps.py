"""Optimizer steps for a loop that takes none."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unstuck.interventions.base import Intervention

if TYPE_CHECKING:
    from unstuck.capture.trial.lab import Lab


class TakeSteps(Intervention, frozen=True):
    """Step every optimizer after each backward, and clear its gradients; for scripts that never do."""

    WORDS = "a step after every backward()"

    def apply(self, lab: Lab) -> None:
        import torch
        from torch.optim import Optimizer

        optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()

        def building(original: Callable[..., Any]) -> Callable[..., Any]:
            def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
                original(optimizer, *args, **kwargs)
                optimizers.add(optimizer)

            return init

        def stepping(original: Callable[..., Any]) -> Callable[..., Any]:
            def backward(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                for optimizer in list(optimizers):
                    optimizer.step()
                    optimizer.zero_grad()
                return result

            return backward

        lab.wrap(Optimizer, "__init__", building)
        lab.wrap(torch.Tensor, "backward", stepping)
