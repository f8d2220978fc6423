"""Changes to how a loop treats its gradients, its mode and its losses: the remedies of common mistakes."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.observers.losses import class_axis
from unstuck.capture.trial.interventions.lab import Arguments, Lab

SMALLEST = 1e-12
"""The least probability whose logarithm is taken."""
ROUNDING = 1e-2
"""How far above 1 a probability may lie in half precision."""
AFTER_SOFTMAX = ("cross_entropy", "nll_loss")
AFTER_SIGMOID = ("binary_cross_entropy_with_logits",)
COMPARING = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", *AFTER_SIGMOID)


def clear_gradients(lab: Lab) -> None:
    """After each step, so that the next backward begins with none."""

    def clear(optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    _after_attempts(lab, clear)


def _after_attempts(lab: Lab, action: Callable[[Optimizer], None]) -> None:
    """After each step of an optimizer, and after each that a GradScaler left out because gradients overflowed."""

    def stepping(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, optimizer, *args, **kwargs)
            action(optimizer)
            return result

        return step

    lab.after_steps(action)
    lab.wrap(torch.amp.GradScaler, "step", stepping)


class KeptGradients:
    """Leaves out each clearing between a backward and the step that should use it."""

    def __init__(self, lab: Lab) -> None:
        self._pending = False
        self._in_step = False
        """Is an optimizer at work? The closure that it calls clears gradients rightly."""
        for owner in (torch.Tensor, torch.autograd):
            lab.wrap(owner, "backward", self._backward)
        lab.wrap(Optimizer, "zero_grad", self._zero)
        lab.wrap(nn.Module, "zero_grad", self._zero)
        lab.before_steps(self._stepping)
        _after_attempts(lab, self._stepped)

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._pending = True
            return result

        return backward

    def _zero(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
            return None if self._pending and not self._in_step else original(owner, *args, **kwargs)

        return zero_grad

    def _stepping(self, optimizer: Optimizer) -> None:
        self._in_step = True

    def _stepped(self, optimizer: Optimizer) -> None:
        self._pending = self._in_step = False
        optimizer.zero_grad()


def take_steps(lab: Lab) -> None:
    """After each backward, step every optimizer that has gradients, and clear them."""
    known: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    def building(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            known.add(optimizer)

        return init

    def stepping(original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            for optimizer in list(known):
                optimizer.step()
                optimizer.zero_grad()
            return result

        return backward

    lab.wrap(Optimizer, "__init__", building)
    lab.wrap(torch.Tensor, "backward", stepping)


def train_mode(lab: Lab) -> None:
    """Before each call of a model with gradients; one that is frozen as a whole stays as it is."""

    def ready(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        learns = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in module.parameters())
        if learns and not module.training:
            module.train()
        return args, kwargs

    lab.change_calls(ready)


def unscale_before_clip(lab: Lab) -> None:
    """Let the scaler in use unscale its optimizers before their gradients are clipped."""
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
            clipped = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            for optimizer, scaler in list(scalers.items()):
                if _holds_any(optimizer, clipped):
                    with contextlib.suppress(RuntimeError):  # the script has unscaled it
                        scaler.unscale_(optimizer)
                        unscaled.add(optimizer)
            return original(clipped, *args, **kwargs)

        return clip_grad

    lab.wrap(torch.amp.GradScaler, "step", stepping)
    lab.wrap(torch.amp.GradScaler, "unscale_", unscaling)
    for owner in (nn.utils, nn.utils.clip_grad):
        lab.wrap(owner, "clip_grad_norm_", clipping)
        lab.wrap(owner, "clip_grad_value_", clipping)


def _holds_any(optimizer: Optimizer, parameters: list[Tensor]) -> bool:
    wanted = {id(parameter) for parameter in parameters}
    return any(id(parameter) in wanted for group in optimizer.param_groups for parameter in group["params"])


def divide_loss(lab: Lab, by: float) -> None:
    """Back-propagate the loss divided by a number; what the script prints of it stays what it was."""

    def dividing(original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(loss: Tensor, gradient: Any = None, *args: Any, **kwargs: Any) -> Any:
            share = torch.full_like(loss, 1 / by) if gradient is None else gradient / by
            return original(loss, share, *args, **kwargs)

        return backward

    lab.wrap(torch.Tensor, "backward", dividing)


def give_losses(lab: Lab, form: str, function: str) -> None:
    """Hand the losses their arguments in the form they take."""
    changes: dict[str, tuple[tuple[str, ...], Callable[[Any, Any], tuple[Any, Any]]]] = {
        "undo-softmax": (AFTER_SOFTMAX[:1], lambda given, target: (_log(given) if _in_unit(given) else given, target)),
        "undo-sigmoid": (AFTER_SIGMOID, lambda given, target: (_logit(given) if _in_unit(given) else given, target)),
        "log-softmax": (AFTER_SOFTMAX[1:], lambda given, target: (F.log_softmax(given, class_axis(given)), target)),
        "log": (AFTER_SOFTMAX[1:], lambda given, target: (_log(given), target)),
        "same-shape": (COMPARING, _same_shape),
        "swapped": ((*COMPARING, "kl_div"), _swapped),
    }
    names, change = changes[form]

    def giving(original: Callable[..., Any]) -> Callable[..., Any]:
        def loss(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(input, Tensor) and isinstance(target, Tensor):
                input, target = change(input, target)
            return original(input, target, *args, **kwargs)

        return loss

    for name in (function,) if function else names:
        lab.wrap(F, name, giving)


def _in_unit(given: Tensor) -> bool:
    """Can these be probabilities? Another loss of the same kind may be given scores, rightly."""
    return bool(((given >= 0) & (given <= 1 + ROUNDING)).all())


def _log(probabilities: Tensor) -> Tensor:
    return probabilities.clamp_min(SMALLEST).log()


def _logit(probabilities: Tensor) -> Tensor:
    return torch.logit(probabilities, eps=1e-7)


def _swapped(given: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Only where the prediction, which has a gradient, comes second."""
    return (target, given) if target.requires_grad and not given.requires_grad else (given, target)


def _same_shape(given: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    same_count = math.prod(given.shape) == math.prod(target.shape)
    return given, target.reshape(given.shape) if same_count else target


__all__ = [
    "KeptGradients",
    "clear_gradients",
    "divide_loss",
    "give_losses",
    "take_steps",
    "train_mode",
    "unscale_before_clip",
]
