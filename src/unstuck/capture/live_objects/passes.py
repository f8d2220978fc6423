"""Passes over a batch in evaluation mode, and which module lets through what it should not."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from unstuck.capture.live_objects.arguments import call, tensors_in
from unstuck.capture.live_objects.function_calls import Compared, ObservedCalls
from unstuck.capture.live_objects.restore import same_pass
from unstuck.capture.places import Places
from unstuck.capture.torch_hooks.hooks import after_modules_of
from unstuck.events import Leak, Place

UnchangedPart = Callable[[Tensor], Tensor | None]
"""The part of a tensor that must not have changed; None if that cannot be said of it."""
MOST_REMEMBERED = 50_000_000
"""Numbers remembered from one pass while the guilty module is looked for."""


class Pass(NamedTuple):
    """One pass."""

    outputs: list[Tensor]
    compared: list[Compared]
    calls: ObservedCalls


class Passes:
    """A model in evaluation mode; every pass draws the same random numbers."""

    def __init__(self, model: nn.Module, loss_fn: Callable[[Any, Any], Any], target: Any, places: Places) -> None:
        self.model = model
        self.target = target
        self._loss_fn = loss_fn
        self._places = places

    def run(self, inputs: Any, losses: bool = False, other_numbers: bool = False) -> Pass:
        """Outputs of the model and, if asked for, what the losses were given."""
        calls = ObservedCalls(self._places)
        with same_pass(self.model), torch.no_grad():
            if other_numbers:
                torch.manual_seed(torch.initial_seed() % 2**32 + 1)
            with calls:
                output = call(self.model, inputs)
                outputs = [item.clone() for item in tensors_in(output) if item.is_floating_point()]
                # In evaluation mode some models return something else than their loss takes.
                with contextlib.suppress(Exception):
                    _ = self._loss_fn(output, self.target) if losses else None
        return Pass(outputs, calls.compared, calls)

    def repeats(self, inputs: Any, baseline: Pass) -> bool:
        """Does the same pass give the same again? If not, a change shows nothing."""
        return change(baseline.outputs, self.run(inputs).outputs) == 0

    def culprit(self, inputs: Any, changed: Any, unchanged: UnchangedPart, leak: Leak) -> Leak:
        """The same leak, with the innermost module it begins in."""
        before = self._outputs_by_module(inputs, unchanged)
        after = self._outputs_by_module(changed, unchanged)
        for (module, given, returned), (other, given_now, returned_now) in zip(before, after, strict=False):
            if module is not other:
                break
            if change(returned, returned_now) > 0 and change(given, given_now) == 0 and given:
                return self._named(leak, module)
        return self._named(leak, self.model)

    def _named(self, leak: Leak, module: nn.Module) -> Leak:
        names = {id(inner): name for name, inner in self.model.named_modules()}
        return Leak(
            leak.axis,
            leak.size,
            leak.shape,
            leak.change,
            names.get(id(module), ""),
            type(module).__name__,
            getattr(module, "batch_first", None),
            self._written(module),
        )

    def _written(self, module: nn.Module) -> Place | None:
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        if code is None or not self._places.is_users(code):
            return None
        return self._places.of_file(code.co_filename, code.co_firstlineno, 1)

    def _outputs_by_module(
        self, inputs: Any, unchanged: UnchangedPart
    ) -> list[tuple[nn.Module, list[Tensor], list[Tensor]]]:
        """What each module was given and returned, in the order in which they ended."""
        calls: list[tuple[nn.Module, list[Tensor], list[Tensor]]] = []
        room = [MOST_REMEMBERED]

        def ended(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            given, returned = _unchanged_parts((args, kwargs), unchanged), _unchanged_parts(output, unchanged)
            room[0] -= sum(tensor.numel() for tensor in (*given, *returned))
            if room[0] > 0:
                calls.append((module, [item.clone() for item in given], [item.clone() for item in returned]))

        with after_modules_of(self.model, ended), same_pass(self.model), torch.no_grad():
            call(self.model, inputs)
        return calls


def _unchanged_parts(value: Any, unchanged: UnchangedPart) -> list[Tensor]:
    parts = (unchanged(tensor) for tensor in tensors_in(value))
    return [part for part in parts if part is not None]


def change(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """The largest change, as a multiple of the spread; 0 where it may be rounding or cannot be said."""
    return max((one for pair in _pairs(before, after) if (one := _changed(*pair)) > _rounding(pair[0])), default=0.0)


def _pairs(before: Sequence[Tensor], after: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    for one, other in zip(before, after, strict=False):
        if one.shape == other.shape and one.numel():
            yield one, other


def _changed(one: Tensor, other: Tensor) -> float:
    if not one.is_floating_point():
        return 0.0 if torch.equal(one, other) else 1.0
    one, other = one.float(), other.float()
    # Masked scores are -inf on purpose; where both are, nothing changed.
    finite = torch.isfinite(one) & torch.isfinite(other)
    if not bool(finite.any()):
        return 0.0
    difference = float((one[finite] - other[finite]).abs().max())
    spread = float(one[finite].std(correction=0))
    return difference / spread if difference and spread else float(difference > 0)


def _rounding(tensor: Tensor) -> float:
    return 0.05 if tensor.dtype in (torch.float16, torch.bfloat16) else 1e-4
