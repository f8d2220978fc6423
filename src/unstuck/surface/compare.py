"""Two variants of a loss on the same axes, and the difference between them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unstuck.findings.surface import Array, Surface
from unstuck.surface.loss import SurfaceError


def difference(old: Surface, new: Surface) -> Surface:
    """What changes from the old loss to the new one, at every point: `new - old`."""
    same = [np.array_equal(one.points, other.points) for one, other in zip(old.axes, new.axes, strict=False)]
    if old.dimensions != new.dimensions or not all(same):
        raise SurfaceError(f"{old.name} and {new.name} do not have the same axes; give both the same --x and --y.")
    with np.errstate(invalid="ignore"):
        value, gradient = new.value - old.value, new.gradient - old.gradient
    return Surface(f"{new.name} - {old.name}", old.axes, value, gradient, marks=old.marks, mark_names=old.mark_names)


def sentences(old: Surface, new: Surface) -> Iterator[str]:
    """The difference in words: by how much, where most, and whether descent goes another way."""
    change = difference(old, new)
    known = np.isfinite(change.value)
    if not known.any():
        yield f"{old.name} and {new.name} are nowhere finite together."
        return
    index = np.unravel_index(int(np.nanargmax(np.where(known, np.abs(change.value), np.nan))), change.value.shape)
    where = ", ".join(f"{axis.name} = {axis.points[i]:.4g}" for axis, i in zip(change.axes, index, strict=True))
    yield f"{change.name} is from {change.lowest:.4g} to {change.highest:.4g}, largest at {where}."
    turned, steeper = _turned(old.gradient, new.gradient), _ratio(old.steepness, new.steepness)
    if turned is not None:
        yield f"Descent points against the old direction on {turned:.0%} of the points."
    if steeper is not None:
        yield f"The gradient is {steeper:.3g} times as large (median)."


def _turned(old: Array, new: Array) -> float | None:
    both = np.isfinite(old).all(axis=0) & np.isfinite(new).all(axis=0)
    both &= (old != 0).any(axis=0) & (new != 0).any(axis=0)
    along = (old * new).sum(axis=0)[both]
    return float((along < 0).mean()) if along.size else None


def _ratio(old: Array, new: Array) -> float | None:
    both = np.isfinite(old) & np.isfinite(new) & (old > 0)
    return float(np.median(new[both] / old[both])) if both.any() else None
