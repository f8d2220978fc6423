"""Does a prediction of the next element see that element? Asked by changing the later half of the sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unstuck.capture.live_objects.arguments import tensors_in, with_tensors
from unstuck.capture.live_objects.passes import Pass, Passes, change
from unstuck.events import Leak

SHORTEST = 4
FEWEST_PLACES = 8
MOSTLY, ALL, CLEARLY = 0.8, 0.99, 0.3


class Sequences(NamedTuple):
    """Targets that are the inputs themselves, moved by one place or by none."""

    given: Tensor
    """The input, as it lies in the batch."""
    loss: int
    """Which of the losses of the pass compares with it."""
    axis: int
    """Along which time goes."""
    ahead: int
    """1 if the target of a place is the element after it."""


def sequences(inputs: Any, baseline: Pass) -> list[Sequences]:
    """The inputs whose own elements are the targets: what makes a model evidently autoregressive.

    If there are such as are one place ahead, only these: a model may receive its targets together with its inputs.
    """
    found = [
        Sequences(tensor, index, axis, ahead)
        for tensor in tensors_in(inputs)
        for index, compared in enumerate(baseline.compared)
        for axis in (1, 0)
        if (ahead := _ahead(tensor, compared.target, axis, compared.ignored)) is not None
        and _rows(baseline, index, tensor, axis) is not None
    ]
    return [one for one in found if one.ahead] or found


def looking_ahead(passes: Passes, inputs: Any, baseline: Pass, found: Sequences) -> Leak | None:
    """Predictions of the first half of the places that change with the elements after these."""
    length = found.given.shape[found.axis]
    cut = length // 2
    changed = with_tensors(inputs, lambda tensor: _replaced(tensor, found, cut, length))
    moved = _change_of_rows(baseline, passes.run(changed, losses=True), found, range(cut))
    if not moved or not passes.repeats(inputs, baseline):
        return None
    leak = Leak(found.axis, length, tuple(baseline.compared[found.loss].prediction.shape), moved)
    return passes.culprit(inputs, changed, lambda tensor: _before(tensor, found.axis, length, cut), leak)


def repeats(passes: Passes, inputs: Any, baseline: Pass, found: Sequences) -> bool:
    """Does the prediction of a place depend on the element given there, and on those before it?"""
    length = found.given.shape[found.axis]
    cut = length // 2
    later = with_tensors(inputs, lambda tensor: _replaced(tensor, found, cut, length))
    earlier = with_tensors(inputs, lambda tensor: _replaced(tensor, found, 0, cut))
    own = _change_of_rows(baseline, passes.run(later, losses=True), found, range(cut, cut + 1))
    return own > 0 and _change_of_rows(baseline, passes.run(earlier, losses=True), found, range(cut, length)) > 0


def _before(tensor: Tensor, axis: int, length: int, cut: int) -> Tensor | None:
    return tensor.narrow(axis, 0, cut) if tensor.dim() > axis and tensor.shape[axis] == length else None


def _replaced(tensor: Tensor, found: Sequences, start: int, end: int) -> Tensor:
    """Elements of another sequence from `start` to `end`, or of the same one backwards if there is no other."""
    if tensor is not found.given:
        return tensor
    other = tensor.roll(1, 1 - found.axis)
    if torch.equal(other, tensor):
        other = tensor.flip(found.axis)
    changed = tensor.clone()
    changed.narrow(found.axis, start, end - start).copy_(other.narrow(found.axis, start, end - start))
    return changed


def _change_of_rows(before: Pass, after: Pass, found: Sequences, places: Sequence[int]) -> float:
    parts = [_rows(baseline, found.loss, found.given, found.axis) for baseline in (before, after)]
    if parts[0] is None or parts[1] is None or parts[0].shape != parts[1].shape:
        return 0.0
    target = before.compared[found.loss]
    wanted = _by_time(target.target, found.given, found.axis)
    if wanted is None:
        return 0.0
    within = slice(places[0], places[-1] + 1)
    valid = _valid(wanted, target.ignored)[:, within]
    return change([parts[0][:, within][valid]], [parts[1][:, within][valid]])


def _rows(baseline: Pass, index: int, given: Tensor, axis: int) -> Tensor | None:
    """The predictions of a loss by example and place."""
    if index >= len(baseline.compared):
        return None
    compared = baseline.compared[index]
    prediction = compared.prediction
    if not compared.of_classes:
        return _by_time(prediction, given, axis) if prediction.shape == compared.target.shape else None
    if compared.target.is_floating_point() or prediction.dim() != compared.target.dim() + 1:
        return None
    return _by_time(prediction.movedim(1, -1), given, axis, trailing=1)


def _by_time(tensor: Tensor, given: Tensor, axis: int, trailing: int = 0) -> Tensor | None:
    """By example and place, whether or not it was flattened, or None if it does not fit the given input."""
    if given.dim() < 2:
        return None
    examples, length = given.shape[1 - axis], given.shape[axis]
    if tensor.dim() - trailing == 1:
        for places in (length, length - 1):
            if tensor.shape[0] == examples * places:
                sides = (examples, places) if axis else (places, examples)
                tensor = tensor.reshape(*sides, *tensor.shape[1:])
                break
    if tensor.dim() - trailing < 2:
        return None
    tensor = tensor if axis else tensor.transpose(0, 1)
    return tensor if tensor.shape[0] == examples and tensor.shape[1] in (length, length - 1) else None


def _ahead(given: Tensor, target: Tensor, axis: int, ignored: int) -> int | None:
    """1 if the targets are the next elements, 0 if they are the tokens themselves, None if neither."""
    if given.dim() < 2 or given.shape[axis] < SHORTEST or target.is_floating_point() != given.is_floating_point():
        return None
    wanted = _by_time(target, given, axis)
    if wanted is None or wanted.dim() != given.dim() or wanted.shape[2:] != given.shape[2:]:
        return None
    by_time = given if axis else given.transpose(0, 1)
    moved, still = (_share_equal(by_time[:, ahead:], wanted, ignored) for ahead in (1, 0))
    if moved >= MOSTLY and moved - still >= CLEARLY:
        return 1
    tokens = not given.is_floating_point() and wanted.shape[1] == by_time.shape[1]
    return 0 if tokens and still >= ALL and still - moved >= CLEARLY else None


def _share_equal(elements: Tensor, wanted: Tensor, ignored: int) -> float:
    places = min(elements.shape[1], wanted.shape[1])
    elements, wanted = elements[:, :places], wanted[:, :places]
    valid = _valid(wanted, ignored)
    if int(valid.sum()) < FEWEST_PLACES:
        return 0.0
    equal = elements == wanted
    return float(equal.flatten(2).all(2)[valid].float().mean() if equal.dim() > 2 else equal[valid].float().mean())


def _valid(wanted: Tensor, ignored: int) -> Tensor:
    if wanted.is_floating_point():
        return torch.ones(wanted.shape[:2], dtype=torch.bool, device=wanted.device)
    return wanted != ignored
