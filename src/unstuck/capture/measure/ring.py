"""Samples of an optimizer's tensors, kept for a few steps so that all can be reduced in a handful of operations.

In the middle of a training every small operation takes ten times as long as it would alone, because its code has left
the caches. What a step needs is therefore only copied; the arithmetic is done for many steps at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unstuck.capture.measure.tensors import HALVES
from unstuck.capture.torch_hooks.internals import foreach_copy

MOST_STEPS = 64
MOST_HELD = 2**19
"""Elements of the gradients; of the weights twice as many."""
FIGURES = ("weight", "change", "gradient", "largest", "present", "moved", "broken")
"""What is computed of every sample: three norms, the largest element of the gradient, how many elements of it are not
zero, where weights of half precision may stand still how many the step has changed, and where some elements of a
gradient are not finite how many."""
_FEW = 256
"""Tensors that are reduced one by one, which is more exact; more of them in one go, which is faster."""

# The norms of order 0 and infinity, and counting, take five to ten times as long as these do.
_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "norm": lambda part: torch.linalg.vector_norm(part, dim=1),
    "max": lambda part: part.amax(1),
    "sum": lambda part: part.sum(1),
}


class Reduced(NamedTuple):
    """The `FIGURES`: those that there are always, and two that are only computed where they may tell something."""

    always: Tensor
    moved: Tensor | None
    broken: Tensor | None


class Ring:
    """Room for the samples of a few steps, for tensors whose samples have these shapes.

    Each step has a copy of the weights before and after it; the second may be the first of the next step.
    """

    def __init__(self, samples: Sequence[Tensor]) -> None:
        self.shapes = [part.shape for part in samples]
        self._lengths = [part.numel() for part in samples]
        width = sum(self._lengths)
        self.steps = max(1, min(MOST_STEPS, MOST_HELD // max(1, width)))
        """How many it holds."""
        self._halves = any(part.dtype in HALVES for part in samples)
        wide = torch.float64 if any(part.dtype is torch.float64 for part in samples) else torch.float32
        with torch.inference_mode(False):  # what is made inside could not be written to outside
            self._weights = torch.zeros(2 * self.steps + 1, width, dtype=wide, device=samples[0].device)
            self._gradients = self._weights.new_zeros(self.steps, width)
        self._views: dict[tuple[bool, int], list[Tensor]] = {}
        self._before: list[int] = []
        """For each step the row of the weights before it; those after it are in the next one."""
        self._last: int | None = None
        """The row of the newest weights."""
        self._open = False
        """Has a step begun that has not ended?"""

    def fits(self, samples: Sequence[Tensor]) -> bool:
        """Are these of the shapes it was made for?"""
        return [part.shape for part in samples] == self.shapes

    def begin(self, weights: Sequence[Tensor], compare: bool) -> bool:
        """Copy the weights before a step; False if they turn out to be others than after the last one."""
        if self._open:  # by a step that raised
            self._last = self._before[-1] + 1 if self._before else None
        row = 0 if self._last is None else self._last + 1
        self._put(self._slots(True, row), weights)
        same = not compare or self._last is None or torch.equal(self._weights[row], self._weights[self._last])
        self._last, self._open = row, True
        return same

    def end(self, weights: Sequence[Tensor], gradients: Sequence[Tensor], owners: Sequence[int]) -> None:
        """Copy the weights after a step, and the gradients of some tensors. Without `begin` the step began with the
        weights that the last one ended with."""
        assert self._last is not None
        slots = self._slots(False, len(self._before))
        if len(owners) < len(slots):
            slots = [slots[owner] for owner in owners]
        self._before.append(self._last)
        self._last, self._open = self._last + 1, False
        self._put([*self._slots(True, self._last), *slots], [*weights, *gradients])

    @property
    def is_full(self) -> bool:
        """Is there no room for another step?"""
        return len(self._before) >= self.steps

    def reduced(self) -> Reduced:
        """The `FIGURES` of every tensor at each step. The steps are forgotten."""
        rows, self._before = self._before, []
        first, count = rows[0], len(rows)
        in_a_row = rows == list(range(first, first + count))
        before = self._weights[first : first + count] if in_a_row else self._weights[rows]
        after = self._weights[first + 1 : first + count + 1] if in_a_row else self._weights[[row + 1 for row in rows]]
        change, gradients = after - before, self._gradients[:count]
        found = [self._each("norm", before), self._each("norm", change), self._each("norm", gradients)]
        broken = self._broken(gradients, found[-1])
        found.append(self._each("max", gradients.abs_()))
        found.append(self._each("sum", gradients.sign_()))
        moved = self._each("sum", change.sign_().abs_()) if self._halves else None
        if self._last:
            self._weights[0].copy_(self._weights[self._last])
            self._last = 0
        return Reduced(torch.stack(found), moved, broken)

    def _broken(self, gradients: Tensor, norms: Tensor) -> Tensor | None:
        """How many elements are not finite: counted only if there are any, unless that must be asked of a device."""
        if norms.is_cpu and bool(torch.isfinite(norms).all()):
            return None
        return self._each("sum", torch.isfinite(gradients).logical_not_().to(gradients.dtype))

    def _each(self, how: str, held: Tensor) -> Tensor:
        """Reduce every sample of every step to one number."""
        if len(self._lengths) <= _FEW:
            reduce = _REDUCTIONS[how]
            return torch.stack([reduce(part) for part in torch.split_with_sizes(held, self._lengths, 1)])
        lengths = torch.tensor(self._lengths, device=held.device).repeat(len(held))
        values = (held.square() if how == "norm" else held).reshape(-1)
        found = torch.segment_reduce(values, "max" if how == "max" else "sum", lengths=lengths)
        return (found.sqrt() if how == "norm" else found).view(len(held), -1).T

    def _put(self, slots: list[Tensor], samples: Sequence[Tensor]) -> None:
        if samples:
            foreach_copy(slots, list(samples))

    def _slots(self, weights: bool, row: int) -> list[Tensor]:
        """Where the samples of one row go."""
        known = self._views.get((weights, row))
        if known is None:
            parts = torch.split_with_sizes((self._weights if weights else self._gradients)[row], self._lengths)
            known = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
            if len(known) <= _FEW:
                self._views[(weights, row)] = known
        return known
