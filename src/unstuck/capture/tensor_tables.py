"""Makes gauges of what a ring of samples was reduced to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unstuck.capture.samples import rounded, short
from unstuck.capture.tensors import may_measure, reading

GAUGES = ("grad_norm", "grad_max", "grad_zero", "grad_nonfinite", "weight_norm", "update_ratio", "unmoved")
OF_GRADIENT = GAUGES.index("weight_norm")
"""How many of them a step without a gradient does not have; nor does it have the last one."""
RARE = GAUGES.index("grad_nonfinite")
"""Left out where it is 0 everywhere."""


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


def table(figures: Tensor, shape: Shape, rows: Sequence[Row]) -> Tensor:
    """All `GAUGES` of every row, column by column, followed by the norm of all gradients of each row. NaN where
    nothing was measured."""
    weight, change, norm, broken, largest, present, *moved = figures
    lengths = figures.new_tensor(shape.lengths)[:, None]
    roots = figures.new_tensor(shape.sizes).sqrt_()[:, None]
    nothing = figures.new_full((), math.nan)
    ratio = torch.where(weight > 0, change / weight, nothing)
    unmoved = torch.where(present > 0, (1 - moved[0] / present).clamp_min(0), nothing) if moved else nothing
    of_gradient = [norm * roots, largest, 1 - present / lengths, broken / lengths]
    whole = torch.stack([*of_gradient, weight * roots, ratio, unmoved.expand_as(weight)])
    for number, row in enumerate(rows):
        if len(row.places) < len(shape.lengths) or row.exact is not None:
            _correct(whole[:, :, number], row)
    placed = figures.new_full((len(GAUGES), shape.width, len(rows)), math.nan)
    placed[:, shape.columns] = whole
    totals = placed[0].square().nansum(0).sqrt()
    return torch.cat([placed.permute(2, 0, 1).reshape(-1), totals])


def _correct(own: Tensor, row: Row) -> None:
    """Where the ring holds nothing of this step, or better is known."""
    if len(row.places) < own.shape[1]:
        absent = sorted(set(range(own.shape[1])) - set(row.places))
        own[:OF_GRADIENT, absent] = math.nan
        own[-1, absent] = math.nan
    for place, figures in row.odd:
        own[:OF_GRADIENT, place] = figures.to(own)
    if row.exact is not None:
        own[0, row.exact[0]] = row.exact[1].to(own)


def split(width: int, rows: int, numbers: tuple[float, ...]) -> list[Any]:
    """Row by row, the columns of all `GAUGES` and the norm of all gradients."""
    numbers = _rounded(numbers)
    made: list[Any] = []
    for row in range(rows):
        for gauge in range(len(GAUGES)):
            start = (row * len(GAUGES) + gauge) * width
            values = numbers[start : start + width]
            if gauge == RARE and not any(value > 0 for value in values):
                values = ()
            made.append(values if math.isfinite(sum(values)) else tuple(map(_if_finite, values)))
        made.append(numbers[rows * len(GAUGES) * width + row])
    return made


def _rounded(numbers: tuple[float, ...]) -> tuple[float, ...]:
    if not may_measure():  # numbers of a device arrive whenever they do
        return tuple(math.nan if value is None else value for value in short(numbers))
    with reading():
        return tuple(rounded(torch.tensor(numbers, dtype=torch.float64, device="cpu")).tolist())


def _if_finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
