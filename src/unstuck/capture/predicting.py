"""What a model predicts for the examples of a batch, in a number for each."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, isfinite

from unstuck.capture.tensors import tensors_in
from unstuck.exhibits import Snapshot

MOST_EXAMPLES = 32


class Reader(NamedTuple):
    """How outputs of one shape are read, and what they should have been."""

    kind: str
    """As `Dynamics` has it."""
    snapshot: Callable[[int, Tensor], Snapshot]
    classes: int = 0
    targets: tuple[float | None, ...] = ()


def reader_for(output: Tensor, target: Tensor | None, of_classes: bool) -> Reader:
    """For outputs like this one, of at least one dimension. `target`: what the loss compares them with."""
    count = len(output)
    known = target.reshape(-1)[:count].tolist() if target is not None and _one_each(target, count) else []
    if of_classes and output.dim() == 2 and output.shape[1] > 1:
        return Reader("class", _classes, output.shape[1], short(known))
    if of_classes and target is not None and _one_each_position(target, output):
        aims = target.cpu().reshape(-1, output.shape[1])[:count]
        return Reader("right", functools.partial(_right, aims))
    if output.numel() == count:
        return Reader("value", _values, targets=short(known))
    return Reader("spread", _spreads)


def prediction(output: Any) -> Tensor | None:
    """The tensor in what a model returns that its prediction is: the logits, or the first one of floating point."""
    logits = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    found = [output] if isinstance(output, Tensor) else tensors_in(output)
    found = [tensor for tensor in found if tensor.is_floating_point() and tensor.dim() > 0]
    return found[0] if found else None


def short(values: Sequence[float]) -> tuple[float | None, ...]:
    """Four digits of each; None where one is not finite."""
    return tuple(float(f"{value:.4g}") if math.isfinite(value) else None for value in values[:MOST_EXAMPLES])


def _one_each(target: Tensor, count: int) -> bool:
    return target.dim() > 0 and target.numel() == len(target) >= count


def _classes(step: int, output: Tensor) -> Snapshot:
    sums_to_one = bool((output >= 0).all()) and bool(((output.sum(1) - 1).abs() < 1e-3).all())
    shares, best = (output if sums_to_one else output.softmax(1)).max(1)
    broken = ~isfinite(output).all(1)
    found = [None if bad else float(one) for one, bad in zip(best.tolist(), broken.tolist(), strict=True)]
    return Snapshot(step, tuple(found), short(shares.tolist()))


def _one_each_position(target: Tensor, output: Tensor) -> bool:
    """Of sequences, (examples, positions, classes): is there a target for each position?"""
    positions = output.shape[1] if output.dim() == 3 else 0
    fits = positions > 0 and target.numel() % positions == 0 and target.numel() >= len(output) * positions
    return fits and not target.is_floating_point() and int(target.max()) < output.shape[2]


def _right(aims: Tensor, step: int, output: Tensor) -> Snapshot:
    """The share of the positions that count at which the highest score is right."""
    counted = aims >= 0
    hits = (output.argmax(2) == aims) & counted
    return Snapshot(step, short((hits.sum(1) / counted.sum(1)).tolist()))


def _values(step: int, output: Tensor) -> Snapshot:
    return Snapshot(step, short(output.reshape(-1).tolist()))


def _spreads(step: int, output: Tensor) -> Snapshot:
    rows = output.reshape(len(output), -1)[:MOST_EXAMPLES]
    return Snapshot(step, short(rows.std(1, correction=0).tolist()))
