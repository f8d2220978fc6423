"""Gradient clipping: more of it, none of it, or at the right time."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unstuck.interventions.base import Intervention

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from unstuck.capture.trial.lab import Lab


class ClipGradients(Intervention, frozen=True):
    """Clip the norm of all gradients before each step."""

    norm: float

    WORDS = "gradients clipped to a norm of {0.norm:.3g}"

    def apply(self, lab: Lab) -> None:
        def clip(optimizer: Optimizer) -> None:
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            dense = [gradient for gradient in gradients if not gradient.is_sparse]
            size = math.sqrt(sum(float(gradient.float().norm()) ** 2 for gradient in dense))
            for gradient in dense if size > self.norm or not math.isfinite(size) else ():
                gradient.mul_(self.norm / size if math.isfinite(size) else 0.0)

        lab.before_steps(clip)


class NoClipping(Intervention, frozen=True):
    """Give the script's own clipping a limit that nothing reaches."""

    WORDS = "the script's own clipping switched off"

    def apply(self, lab: Lab) -> None:
        def unlimited(original: Callable[..., Any]) -> Callable[..., Any]:
            def clip_grad(parameters: Any, *args: Any, **kwargs: Any) -> Any:
                kwargs.pop("max_norm", None), kwargs.pop("clip_value", None)
                return original(parameters, math.inf, *args[1:], **kwargs)

            return clip_grad

        _wrap_clipping(lab, unlimited)


class UnscaleBeforeClip(Intervention, frozen=True):
    """Let the GradScaler unscale the gradients before they are clipped."""

    WORDS = "gradients unscaled before they are clipped"

    def apply(self, lab: Lab) -> None:
        import torch

        scalers: weakref.WeakKeyDictionary[Optimizer, Any] = weakref.WeakKeyDictionary()
        unscaled: weakref.WeakSet[Optimizer] = weakref.WeakSet()

        def stepping(original: Callable[..., Any]) -> Callable[..., Any]:
            def step(scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
                scalers[optimizer] = scaler
                unscaled.discard(optimizer)
                return original(scaler, optimizer, *args, **kwargs)

            return step

        def unscaling(original: Callable[..., Any]) -> Callable[..., Any]:
            def unscale(scaler: Any, optimizer: Optimizer) -> None:
                if optimizer not in unscaled:  # the script's own call comes after the clipping
                    original(scaler, optimizer)

            return unscale

        def clipping(original: Callable[..., Any]) -> Callable[..., Any]:
            def clip_grad(parameters: Any, *args: Any, **kwargs: Any) -> Any:
                clipped = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
                wanted = {id(parameter) for parameter in clipped}
                for optimizer, scaler in list(scalers.items()):
                    if any(
                        id(parameter) in wanted for group in optimizer.param_groups for parameter in group["params"]
                    ):
                        with contextlib.suppress(RuntimeError):  # the script has unscaled it
                            scaler.unscale_(optimizer)
                            unscaled.add(optimizer)
                return original(clipped, *args, **kwargs)

            return clip_grad

        lab.wrap(torch.amp.GradScaler, "step", stepping)
        lab.wrap(torch.amp.GradScaler, "unscale_", unscaling)
        _wrap_clipping(lab, clipping)


def _wrap_clipping(lab: Lab, make: Callable[[Any], Any]) -> None:
    from torch import nn

    for owner in (nn.utils, nn.utils.clip_grad):
        lab.wrap(owner, "clip_grad_norm_", make)
        lab.wrap(owner, "clip_grad_value_", make)
