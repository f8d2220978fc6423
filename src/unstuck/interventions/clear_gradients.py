"""When gradients are cleared: after each step, and never before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unstuck.interventions.base import Intervention

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from unstuck.capture.trial.lab import Lab


class ClearGradients(Intervention, frozen=True):
    """Clear all gradients after each step."""

    WORDS = "gradients cleared after every step"

    def apply(self, lab: Lab) -> None:
        def clear(optimizer: Optimizer) -> None:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

        _after_attempts(lab, clear)


class KeepGradients(Intervention, frozen=True):
    """Skip every clearing between a backward and the step that should use it."""

    WORDS = "no clearing between backward() and step()"

    def apply(self, lab: Lab) -> None:
        import torch
        from torch import nn
        from torch.optim import Optimizer

        has_gradients = is_stepping = False

        def computing(original: Callable[..., Any]) -> Callable[..., Any]:
            def backward(*args: Any, **kwargs: Any) -> Any:
                nonlocal has_gradients
                result = original(*args, **kwargs)
                has_gradients = True
                return result

            return backward

        def clearing(original: Callable[..., Any]) -> Callable[..., Any]:
            def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
                # The closure that an optimizer calls during its step is right to clear gradients.
                return None if has_gradients and not is_stepping else original(owner, *args, **kwargs)

            return zero_grad

        def step_begins(optimizer: Optimizer) -> None:
            nonlocal is_stepping
            is_stepping = True

        def step_ended(optimizer: Optimizer) -> None:
            nonlocal has_gradients, is_stepping
            has_gradients = is_stepping = False
            optimizer.zero_grad()

        for owner in (torch.Tensor, torch.autograd):
            lab.wrap(owner, "backward", computing)
        lab.wrap(Optimizer, "zero_grad", clearing)
        lab.wrap(nn.Module, "zero_grad", clearing)
        lab.before_steps(step_begins)
        _after_attempts(lab, step_ended)


def _after_attempts(lab: Lab, action: Callable[[Optimizer], None]) -> None:
    """After each step of an optimizer, and after each that a GradScaler skipped because gradients overflowed."""
    import torch

    def stepping(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, optimizer, *args, **kwargs)
            action(optimizer)
            return result

        return step

    lab.after_steps(action)
    lab.wrap(torch.amp.GradScaler, "step", stepping)
