"""Makes gauges of what a ring of samples was reduced to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unstuck.capture.measure.ring import Reduced
from unstuck.capture.measure.samples import rounded, short
from unstuck.capture.measure.tensors import may_measure, reading

GAUGES = ("grad_norm", "grad_max", "grad_zero", "weight_norm", "update_ratio", "unmoved")
RARE = "grad_nonfinite"
"""Told after them, where a gradient may have elements that are not finite."""
OF_GRADIENT = [0, 1, 2, 5, 6]
"""Places of those that a step without a gradient does not have."""
OF_ODD = [0, 1, 2, 6]
"""Places of those that `Row.odd` knows."""


class Shape(NamedTuple):
    """What is the same for all steps: of each tensor its column, the length of its sample and how many times larger
    it is."""

    columns: list[int]
    width: int
    lengths: list[int]
    sizes: list[float]


class Row(NamedTuple):
    """The gradients of one step: which of the tensors have one in the ring, and what else is known of some of them."""

    places: Sequence[int]
    exact: tuple[list[int], Tensor] | None
    """Norms of whole gradients, and whose they are."""
    odd: Sequence[tuple[int, Tensor]]
    """Norm, largest element, shares of zeros and of what is not finite, of those that were not put into the ring."""


def table(reduced: Reduced, shape: Shape, rows: Sequence[Row]) -> tuple[Tensor, tuple[str, ...]]:
    """Gauges of every row, column by column, followed by the norm of all gradients of each row, NaN where nothing was
    measured; and which gauges these are."""
    figures = reduced.always
    weight, change, norm, largest, present = figures
    lengths = figures.new_tensor(shape.lengths)[:, None]
    roots = figures.new_tensor(shape.sizes).sqrt_()[:, None]
    nothing = figures.new_full((), math.nan)
    ratio = torch.where(weight > 0, change / weight, nothing)
    moved = reduced.moved
    unmoved = torch.where(present > 0, (1 - moved / present).clamp_min(0), nothing) if moved is not None else nothing
    made = [norm * roots, largest, 1 - present / lengths, weight * roots, ratio, unmoved.expand_as(weight)]
    names: tuple[str, ...] = GAUGES
    if reduced.broken is not None or any(row.odd for row in rows):
        made.append(torch.zeros_like(weight) if reduced.broken is None else reduced.broken / lengths)
        names = (*GAUGES, RARE)
    whole = torch.stack(made)
    for number, row in enumerate(rows):
        if len(row.places) < len(shape.lengths) or row.exact is not None:
            _correct(whole[:, :, number], row)
    placed = figures.new_full((len(names), shape.width, len(rows)), math.nan)
    placed[:, shape.columns] = whole
    totals = placed[0].square().nansum(0).sqrt()
    return torch.cat([placed.permute(2, 0, 1).reshape(-1), totals]), names


def _correct(own: Tensor, row: Row) -> None:
    """Where the ring holds nothing of this step, or better is known."""
    if len(row.places) < own.shape[1]:
        absent = sorted(set(range(own.shape[1])) - set(row.places))
        for gauge in (place for place in OF_GRADIENT if place < len(own)):
            own[gauge, absent] = math.nan
    for place, figures in row.odd:
        own[OF_ODD, place] = figures.to(own)
    if row.exact is not None:
        own[0, row.exact[0]] = row.exact[1].to(own)


def split(width: int, rows: int, gauges: int, numbers: tuple[float, ...]) -> list[Any]:
    """Row by row, the columns of so many gauges and the norm of all gradients."""
    numbers = _rounded(numbers)
    made: list[Any] = []
    for row in range(rows):
        for start in range(row * gauges * width, (row + 1) * gauges * width, width):
            values = numbers[start : start + width]
            made.append(values if math.isfinite(sum(values)) else tuple(map(_if_finite, values)))
        made.append(numbers[rows * gauges * width + row])
    return made


def _rounded(numbers: tuple[float, ...]) -> tuple[float, ...]:
    if not may_measure():  # numbers of a device arrive whenever they do
        return tuple(math.nan if value is None else value for value in short(numbers))
    with reading():
        return tuple(rounded(torch.tensor(numbers, dtype=torch.float64, device="cpu")).tolist())


def _if_finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
