"""What a model predicts for the examples of a batch, as one number for each."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from types import GetSetDescriptorType
from typing import Any, NamedTuple

from torch import Tensor, isfinite

from unstuck.capture.measure.tensors import tensors_in
from unstuck.events import PredictionKind
from unstuck.events.losses import CLASS_LOSSES

MOST_EXAMPLES = 32


class Compared(NamedTuple):
    """What a loss compared the output of a model with."""

    loss: str
    target: Tensor
    """Flat, the first elements of it."""
    shape: tuple[int, ...]
    """Of the whole target."""
    source: tuple[int, ...]
    """The shape in which the loss was given the output; empty if it was given only some of it, or a copy."""

    @property
    def of_classes(self) -> bool:
        """Is it about classes?"""
        return self.loss in CLASS_LOSSES and not self.target.is_floating_point()

    def is_one_each(self, examples: int) -> bool:
        """Does each of at least so many examples have one target?"""
        return bool(self.shape) and math.prod(self.shape) == self.shape[0] >= examples <= len(self.target)


class Reader(NamedTuple):
    """How outputs of one shape are read, and what they should have been."""

    kind: PredictionKind
    values: Callable[[Tensor], tuple[float | None, ...]]
    targets: tuple[float | None, ...] = ()


def reader_for(output: Tensor, compared: Compared | None, of_classes: bool = False) -> Reader:
    """For outputs like this one, of at least one dimension. `of_classes`: rows are known to be scores of classes."""
    count = len(output)
    known = compared.target[:count].tolist() if compared is not None and compared.is_one_each(count) else []
    of_classes = compared.of_classes if compared is not None else of_classes
    if of_classes and output.dim() == 2 and output.shape[1] > 1:
        return Reader(PredictionKind.CLASS, _classes, tuple(float(value) for value in known))
    axis = _class_axis(output, compared) if compared is not None and of_classes else None
    if axis is not None and compared is not None:
        positions = output.shape[3 - axis]
        aims = compared.target[: count * positions].reshape(-1, positions)
        return Reader(PredictionKind.RIGHT, functools.partial(_right, aims, axis))
    if output.numel() == count:
        return Reader(PredictionKind.VALUE, _values, short(known))
    return Reader(PredictionKind.SPREAD, _spreads)


def _class_axis(output: Tensor, compared: Compared) -> int | None:
    """Of three dimensions the one of the classes, if each position of each example has a target."""
    if output.dim() != 3 or not compared.source:
        return None
    rest = output.shape[1:]
    if len(compared.source) == 2 and compared.source[1] == rest[1]:
        axis = 2  # flattened for the loss
    elif compared.source[1:] == tuple(rest):
        axis = 1  # as torch has them
    elif compared.source[1:] == (rest[1], rest[0]):
        axis = 2  # transposed for the loss
    else:
        return None
    positions = rest[2 - axis]
    return axis if len(compared.target) >= len(output) * positions else None


def prediction(output: Any) -> Tensor | None:
    """The tensor among what a model returns that is its prediction: the logits, or the first floating-point one.

    Attributes are read without running code of the class: a property may compute.
    """
    logits = dict.get(output, "logits") if issubclass(type(output), dict) else own(output).get("logits")
    if isinstance(logits, Tensor):
        return logits
    found = [output] if isinstance(output, Tensor) else tensors_in(output)
    found = [tensor for tensor in found if tensor.is_floating_point() and tensor.dim() > 0]
    return found[0] if found else None


def own(value: Any) -> dict[str, Any]:
    """The attributes of an object, without running code of its class."""
    for base in type(value).__mro__:
        attribute = vars(base).get("__dict__")
        if attribute is not None and type(attribute) is not GetSetDescriptorType:
            return {}
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def short(values: Sequence[float]) -> tuple[float | None, ...]:
    """Four digits of each; None where one is not finite."""
    return tuple(four_digits(value) for value in values[:MOST_EXAMPLES])


def four_digits(value: float) -> float | None:
    """None if it is not finite."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _classes(output: Tensor) -> tuple[float | None, ...]:
    finite = isfinite(output).all(1).tolist()
    return tuple(float(best) if ok else None for best, ok in zip(output.argmax(1).tolist(), finite, strict=True))


def _right(aims: Tensor, axis: int, output: Tensor) -> tuple[float | None, ...]:
    """The share of the positions that count at which the highest score is right."""
    counted = aims >= 0
    hits = (output.argmax(axis) == aims) & counted
    return short((hits.sum(1) / counted.sum(1)).tolist())


def _values(output: Tensor) -> tuple[float | None, ...]:
    return short(output.reshape(-1).tolist())


def _spreads(output: Tensor) -> tuple[float | None, ...]:
    rows = output.reshape(len(output), -1)[:MOST_EXAMPLES]
    return short(rows.std(1, correction=0).tolist())
