"""Does the output of one example depend on another? Asked by changing half of the batch and looking at the rest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unstuck.capture.live_objects.arguments import tensors_in, with_tensors
from unstuck.capture.live_objects.passes import Pass, Passes, change
from unstuck.capture.torch_hooks.internals import BatchNorm
from unstuck.events import Leak
from unstuck.lazy import pattern

ON_PURPOSE = pattern(
    r"(?i)mini_?batch|batch_?(std|mix|attention|former)|std_?dev|moe|expert|router|graph|gcn|gat(conv|layer|net)"
    r"|gnn|sage|intersample|contrast|clip|siamese|prototyp|memory_?bank|queue|set_?transformer|in_?context|episod"
)
"""Classes that look at the whole batch by design."""
FEWEST = 2


class Unclear(Exception):
    """Outputs depend on other rows, and it is not known whether rows are examples or moments."""


def can_be_asked(model: nn.Module, inputs: Any, axis: int) -> bool:
    """Is there one row for each example in every input, and nothing in the model that is about pairs of them?"""
    tensors = [tensor for tensor in tensors_in(inputs) if tensor.dim()]
    sizes = {tensor.shape[axis] if tensor.dim() > axis else 0 for tensor in tensors}
    if len(sizes) != 1 or min(sizes) < FEWEST:
        return False
    if all(tensor.dim() == 1 for tensor in tensors) and any(tensor.is_floating_point() for tensor in tensors):
        return False  # one example without a batch, as an agent is asked
    size = sizes.pop()
    pairs = (size, size)
    if any(tuple(tensor.shape[:2]) == pairs and tensor.dim() == 2 for tensor in (*tensors, *model.buffers())):
        return False
    return not any(_looks_at_the_batch(module) for module in model.modules())


def _looks_at_the_batch(module: nn.Module) -> bool:
    by_batch = isinstance(module, BatchNorm) and (module.training or module.running_mean is None)
    return by_batch or ON_PURPOSE.search(type(module).__name__) is not None


def mixing(passes: Passes, inputs: Any, baseline: Pass, axis: int) -> Leak | None:
    """The dependence of examples on one another along the axis they lie on, if there is any."""
    size = next(tensor for tensor in tensors_in(inputs) if tensor.dim()).shape[axis]
    # A recurrent layer that runs along the batch lets examples depend on earlier ones only.
    halves = (slice(0, size // 2), slice(size - size // 2, size))
    return next(
        (leak for unchanged in halves if (leak := _into(unchanged, passes, inputs, baseline, axis, size))), None
    )


def _into(unchanged: slice, passes: Passes, inputs: Any, baseline: Pass, axis: int, size: int) -> Leak | None:
    """What the unchanged examples take from the others."""
    changed = with_tensors(inputs, lambda tensor: _others_changed(tensor, axis, unchanged))
    leak = _leak(baseline, passes.run(changed), axis, size, unchanged)
    if leak is None or not passes.repeats(inputs, baseline):
        return None
    if not _is_the_batch_axis(passes, inputs, baseline, axis, size):
        raise Unclear
    return passes.culprit(inputs, changed, lambda tensor: _part(tensor, axis, size, unchanged), leak)


def _leak(before: Pass, after: Pass, axis: int, size: int, unchanged: slice) -> Leak | None:
    for one, other in zip(before.outputs, after.outputs, strict=False):
        if one.dim() >= 2 and one.shape[0] == one.shape[1] == size:
            continue  # scores of pairs of examples
        parts = [_part(tensor, axis, size, unchanged) for tensor in (one, other)]
        if parts[0] is not None and parts[1] is not None and (much := change([parts[0]], [parts[1]])) > 0:
            return Leak(axis, size, tuple(one.shape), much)
    return None


def _part(tensor: Tensor, axis: int, size: int, unchanged: slice) -> Tensor | None:
    fits = tensor.dim() > axis and tensor.shape[axis] == size
    return tensor.narrow(axis, unchanged.start, unchanged.stop - unchanged.start) if fits else None


def _others_changed(tensor: Tensor, axis: int, unchanged: slice) -> Tensor:
    """The unchanged examples repeated in place of the others, so that all are what the model expects."""
    if tensor.dim() <= axis:
        return tensor
    size, count = tensor.shape[axis], unchanged.stop - unchanged.start
    order = torch.arange(size, device=tensor.device)
    others = (order < unchanged.start) | (order >= unchanged.stop)
    order[others] = unchanged.start + torch.arange(size - count, device=tensor.device) % count
    return tensor.index_select(axis, order)


def _is_the_batch_axis(passes: Passes, inputs: Any, baseline: Pass, axis: int, size: int) -> bool:
    """Sequences may come with time first; then what looks like examples are moments, and these may depend."""
    tensors = [tensor for tensor in tensors_in(inputs) if tensor.dim()]
    filled = filled_axis(tensors[0])
    if filled is not None:
        return axis != filled
    if axis == 1 or tensors[0].dim() < 2 or tensors[0].dim() > 3 or _one_target_each(passes.target, size):
        return True
    length = tensors[0].shape[1]
    if length < FEWEST or any(tensor.dim() < 2 or tensor.shape[1] != length for tensor in tensors):
        return True
    unchanged = slice(0, length // 2)
    changed = with_tensors(inputs, lambda tensor: _others_changed(tensor, 1, unchanged))
    if _leak(baseline, passes.run(changed), 1, length, unchanged) or not _keeps_axis(baseline, length):
        return True
    # Each column is on its own. A model that knows positions by column takes the rows for examples, and mixes them.
    return _moves_along(passes, inputs, baseline, 0) and not _moves_along(passes, inputs, baseline, 1)


def _one_target_each(target: Any, size: int) -> bool:
    shapes = [tuple(tensor.shape) for tensor in tensors_in(target)]
    return len(shapes) == 1 and shapes[0] in ((size,), (size, 1))


def _keeps_axis(baseline: Pass, length: int) -> bool:
    return any(output.dim() > 1 and output.shape[1] == length for output in baseline.outputs)


def _moves_along(passes: Passes, inputs: Any, baseline: Pass, axis: int) -> bool:
    """Do the outputs change places just as the inputs do?"""
    turned = passes.run(with_tensors(inputs, lambda tensor: tensor.flip(axis) if tensor.dim() > axis else tensor))
    flipped = [output.flip(axis) for output in baseline.outputs if output.dim() > axis]
    return change(flipped, [output for output in turned.outputs if output.dim() > axis]) == 0


def filled_axis(data: Tensor) -> int | None:
    """The axis along which sequences of unequal length are filled up with one value; None if that is not evident."""
    if data.dim() not in (2, 3) or min(data.shape[:2]) < FEWEST:
        return None
    if data.dim() == 3:
        fillings = [(data == 0).all(2)]
    elif data.is_floating_point():
        fillings = [data == 0]
    else:
        fillings = [data == value for value in (0, data[-1, -1], data[0, 0])]
    for filling in fillings:
        axes = [axis for axis in (0, 1) if _is_filled_along(filling, axis)]
        if len(axes) == 1:
            return axes[0]
    return None


def _is_filled_along(filling: Tensor, axis: int) -> bool:
    """Does it stand at the end of some sequences, or at the beginning, and nowhere else?"""
    for ends in (filling.flip(axis), filling):
        lengths = ends.long().cumprod(axis).sum(axis)
        if int(lengths.sum()) == int(filling.sum()) and len(set(lengths.tolist())) > FEWEST:
            return True
    return False
