"""Is the loss a softmax that compares one right candidate with others? Measured on its values, not read off its text.

Such a loss is `log(1 + others * exp(-scale * lead))`, where the lead is how far the similarity of the right candidate
is above that of the others. `log(exp(loss) - 1)` is then a straight line over the lead: its slope is the scale, and
where the lead is 0 it is the logarithm of how many others there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from unstuck.findings.surface import Array, Axis, Comparison
from unstuck.surface.field import Field
from unstuck.surface.shape.checks import sample_of

READABLE = (1e-4, 30.0)
"""Losses in which rounding does not hide where they lie on the line."""
FEWEST = 8
STRAIGHT = 1e-4
"""How far from the line a point may lie. In single precision a loss of 1e-4 is known to a thousandth."""
WHOLE = 1e-3
"""How far from a whole number the candidates may be, as a share."""


def comparison_of(exact: Field, axes: Sequence[Axis], *, is_bounded: bool = False) -> Comparison | None:
    """What is compared, if it is nothing but that. Over one axis the others must have similarity 0."""
    points = sample_of(axes)
    value, _ = exact(points)
    readable = np.isfinite(value) & (value > READABLE[0]) & (value < READABLE[1])
    if readable.sum() < FEWEST:
        return None
    odds = np.log(np.expm1(value[readable]))
    lead = points[readable, 0] - (points[readable, 1] if len(axes) > 1 else 0.0)
    slope, others = _line(lead, odds)
    room = STRAIGHT * (1 + np.abs(odds).max()) * (1 if exact.dtype.itemsize == 8 else 100)
    if slope == 0 or np.abs(others + slope * lead - odds).max() > room:
        return None
    candidates = 1 + math.exp(others)
    if round(candidates) < 2 or abs(candidates - round(candidates)) > WHOLE * candidates:
        return None
    # Over two axes either may be that of the right candidate; over one, a loss that rises has its sign wrong.
    return Comparison(round(candidates), abs(slope) if len(axes) > 1 else -slope, is_bounded)


def _line(x: Array, y: Array) -> tuple[float, float]:
    """Slope and intercept of the best straight line."""
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread if spread else 0.0
    return slope, float(y.mean()) - slope * float(x.mean())
