"""Inputs from which the target follows exactly: a column that is a copy of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unstuck.capture.tasks.sequences import Wanted
from unstuck.events import ColumnsMatched

_FEWEST = 16
_FEWEST_COLUMNS = 3
_MOST_COLUMNS = 4096
_EXACT = 1e-5
"""Of the spread: what rounding leaves."""
_SHOWN = 5


def matched(wanted: Wanted, inputs: Sequence[Tensor], step: int) -> ColumnsMatched | None:
    """Look at each number of the input by itself."""
    target = wanted.target.detach().squeeze(-1) if wanted.target.dim() == 2 else wanted.target.detach()
    given = [one for one in inputs if len(one) == len(target)]
    if target.dim() != 1 or len(target) < _FEWEST or len(given) != 1:
        return None
    columns = given[0].reshape(len(target), -1).double()
    if not _FEWEST_COLUMNS <= columns.shape[1] <= _MOST_COLUMNS:
        return None
    values = torch.unique(target)
    is_class = not target.is_floating_point() or len(values) == 2
    if len(values) < 2 or not bool(torch.isfinite(columns).all()):
        return None
    follows = _by_class(columns, target, values) if is_class else _by_number(columns, target.double())
    return ColumnsMatched(
        step=step,
        place=wanted.place,
        loss=wanted.loss,
        examples=len(target),
        columns=columns.shape[1],
        matching=tuple(int(one) for one in follows.nonzero().flatten()[:_SHOWN]),
        classes=len(values) if is_class else 0,
    )


def _by_class(columns: Tensor, target: Tensor, values: Tensor) -> Tensor:
    """The number of the class, perhaps scaled: classes that are drawn from a column have other values there."""
    return _by_number(columns, target.double())


def _by_number(columns: Tensor, target: Tensor) -> Tensor:
    """A straight line from the number to the target."""
    x, y = columns - columns.mean(0), target - target.mean()
    spread = x.square().sum(0)
    slope = (x * y[:, None]).sum(0) / spread.clamp_min(1e-300)
    rest = (y[:, None] - x * slope).abs().amax(0)
    return (rest <= _EXACT * y.std()) & (spread > 0)
