"""What is learnt from a few passes more: dependence between examples, on the future, on chance, and one step."""

from __future__ import annotations

import contextlib
import inspect
import io
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.objects import parameter_fact, unwrap
from unstuck.capture.places import Places
from unstuck.check import examples, future
from unstuck.check.passes import Passes, Seen, change
from unstuck.check.restore import Values
from unstuck.events import DropoutFact, Leak, ParameterFact

NOTICEABLE = 1e-6
"""A step this small beside a weight may be lost in rounding."""


class Findings:
    """What the passes in evaluation mode showed."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.between_examples: Leak | None = None
        self.from_future: Leak | None = None
        self.copies_input: tuple[int, ...] = ()
        self.dropping: tuple[DropoutFact, ...] = ()


def in_evaluation(
    model: nn.Module, loss_fn: Callable[[Any, Any], Any], inputs: Any, target: Any, places: Places | None = None
) -> Findings:
    """Run the batch in evaluation mode, as it is and changed. What such a pass raises is no mistake of the user's."""
    found = Findings()
    model = unwrap(model)
    with _in_silence(), contextlib.suppress(Exception):
        model.eval()
        passes = Passes(model, loss_fn, target, places or Places())
        seen = passes.run(inputs, losses=True)
        found.done.append("modes")
        found.dropping = _dropping(passes, inputs, seen)
        axis = 0
        with contextlib.suppress(Exception):
            axis = _ask_of_time(passes, inputs, seen, found)
        if examples.can_be_asked(model, inputs, axis) and not seen.heard.batch_statistics:
            found.between_examples = examples.mixing(passes, inputs, seen, axis)
            found.done.append("examples")
    return found


def _ask_of_time(passes: Passes, inputs: Any, seen: Seen, found: Findings) -> int:
    """Looks into the future, if the model is evidently about that; the axis on which the examples lie."""
    candidates = future.sequences(inputs, seen)
    for given in candidates:
        ahead = future.looking_ahead(passes, inputs, seen, given)
        if given.ahead:
            found.from_future = found.from_future or ahead
        elif ahead is None and future.repeats(passes, inputs, seen, given):
            found.copies_input = tuple(seen.compared[given.loss].target.shape)
    if candidates:
        found.done.append("future")
    if any(given.ahead for given in candidates):
        found.done.append("next")
    return 1 - candidates[0].axis if candidates else 0


def _dropping(passes: Passes, inputs: Any, seen: Seen) -> tuple[DropoutFact, ...]:
    """Calls that drop values in evaluation mode, if that makes two passes differ."""
    left_on = any(module.training for module in passes.model.modules())
    if not seen.heard.dropping or left_on:
        return ()
    other = passes.run(inputs, other_numbers=True)
    calls = {(fact.function, fact.place): fact for fact in seen.heard.dropping}
    return tuple(calls.values()) if change(seen.outputs, other.outputs) > 0 else ()


@contextlib.contextmanager
def _in_silence() -> Iterator[None]:
    """What the model prints or warns of was printed and warned of in the pass before."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


class Step(NamedTuple):
    """What one step of the optimizers did that it should not have done."""

    taken: bool
    unmoved: tuple[ParameterFact, ...] = ()
    moved_frozen: tuple[ParameterFact, ...] = ()


def one_step(model: nn.Module, optimizers: Iterable[Optimizer]) -> Step:
    """Take a step with each optimizer that needs nothing but gradients, and compare the parameters."""
    able = [optimizer for optimizer in optimizers if _steps_alone(optimizer)]
    held = [pair for optimizer in able for pair in _held(optimizer)]
    before = Values(parameter for parameter, _ in held)
    with _same_versions([parameter for parameter, _ in held]), _in_silence():
        try:
            for optimizer in able:
                _step(optimizer)
        except Exception:
            # Some steps want to be called in their own way, which a loop knows and we do not.
            return Step(False)
    left = [parameter for parameter, rate in held if before.same(parameter) and _should_move(parameter, rate)]
    moved = [p for p, _ in held if not p.requires_grad and p.grad is None and not before.same(p)]
    return Step(bool(held), _facts(model, left), _facts(model, moved))


def _facts(model: nn.Module, parameters: Iterable[Tensor]) -> tuple[ParameterFact, ...]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return tuple(parameter_fact(names.get(id(each), "one of no given model"), each) for each in parameters)


def _steps_alone(optimizer: Optimizer) -> bool:
    """Needs it no closure, and are its tensors plain ones?"""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    asks = closure is not None and closure.default is inspect.Parameter.empty
    tensors = (tensor for group in optimizer.param_groups for tensor in group["params"])
    return not asks and all(type(tensor) in (nn.Parameter, Tensor) for tensor in tensors)


def _held(optimizer: Optimizer) -> Iterator[tuple[Tensor, float]]:
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
