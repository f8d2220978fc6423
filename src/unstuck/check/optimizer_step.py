"""One step of the optimizers: which parameters it moved, and which half-precision numbers it is too small to move."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.live_objects.evaluation import in_silence
from unstuck.capture.live_objects.restore import Values
from unstuck.capture.measure.describe import too_small_steps
from unstuck.capture.objects import parameter_fact
from unstuck.events import OptimizerSeen, ParameterFact

NOTICEABLE = 1e-6
"""A step this small next to a weight may be lost in rounding."""


class Step(NamedTuple):
    """What one step of the optimizers did that it should not have done."""

    taken: bool
    unmoved: tuple[ParameterFact, ...] = ()
    moved_frozen: tuple[ParameterFact, ...] = ()


def one_step(model: nn.Module, optimizers: Iterable[Optimizer]) -> Step:
    """Take a step with each optimizer that needs nothing but gradients, and compare the parameters."""
    able = [optimizer for optimizer in optimizers if _steps_alone(optimizer)]
    pairs = [pair for optimizer in able for pair in _parameters_and_rates(optimizer)]
    before = Values(parameter for parameter, _ in pairs)
    with _same_versions([parameter for parameter, _ in pairs]), in_silence():
        try:
            for optimizer in able:
                _step(optimizer)
        except Exception:
            # Some steps want to be called in their own way, which a loop knows and we do not.
            return Step(False)
    left = [parameter for parameter, rate in pairs if before.same(parameter) and _should_move(parameter, rate)]
    moved = [p for p, _ in pairs if not p.requires_grad and p.grad is None and not before.same(p)]
    return Step(bool(pairs), _facts(model, left), _facts(model, moved))


def _facts(model: nn.Module, parameters: Iterable[Tensor]) -> tuple[ParameterFact, ...]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return tuple(parameter_fact(names.get(id(each), "one of no given model"), each) for each in parameters)


def _steps_alone(optimizer: Optimizer) -> bool:
    """Needs it no closure, and are its tensors plain ones?"""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    asks = closure is not None and closure.default is inspect.Parameter.empty
    tensors = (tensor for group in optimizer.param_groups for tensor in group["params"])
    return not asks and all(type(tensor) in (nn.Parameter, Tensor) for tensor in tensors)


def _parameters_and_rates(optimizer: Optimizer) -> Iterator[tuple[Tensor, float]]:
    for group in optimizer.param_groups:
        rate = float(group.get("lr", 0.0))
        yield from ((parameter, rate) for parameter in group["params"])


def _step(optimizer: Optimizer) -> None:
    """The step itself, without the hooks and counters that others have put around it."""
    step = type(optimizer).step
    plain = getattr(step, "__wrapped__", step) if getattr(step, "hooked", False) else step
    plain(optimizer)


def _should_move(parameter: Tensor, rate: float) -> bool:
    """Is the gradient, times the rate, large enough to be seen? Half precision has a rule of its own."""
    gradient = parameter.grad
    if gradient is None or gradient.is_sparse or parameter.dtype not in (torch.float32, torch.float64):
        return False
    largest, weight = float(gradient.abs().max()), float(parameter.detach().abs().max())
    return rate * largest > NOTICEABLE * weight and largest > 0


@contextlib.contextmanager
def _same_versions(tensors: Iterable[Tensor]) -> Iterator[None]:
    """A graph of the user's that holds these tensors must still be good for backward()."""
    preserve: Any = getattr(torch.autograd.grad_mode, "_unsafe_preserve_version_counter", None)
    with contextlib.ExitStack() as stack:
        for tensor in tensors if preserve is not None else ():
            stack.enter_context(preserve(tensor))
        yield


def with_small_steps(optimizer: Optimizer, seen: OptimizerSeen) -> OptimizerSeen:
    """The same facts, with the share of half-precision numbers that a step would leave as they are."""
    shares = too_small_steps(optimizer)
    groups = (msgspec.structs.replace(group, too_small=share) for group, share in zip(seen.groups, shares, strict=True))
    return msgspec.structs.replace(seen, groups=tuple(groups))
