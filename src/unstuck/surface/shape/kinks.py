"""Where the gradient jumps: suspected on the grid, then looked at ever closer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unstuck.findings.surface import Array, Axis, Mask, Region
from unstuck.surface.field import Field
from unstuck.surface.shape.regions import connected, region_of
from unstuck.surface.shape.stationary import scale_of

SUDDEN = 4.0
"""A jump stands out when it is this many times the change one cell before and after."""
NOTICEABLE = 0.02
"""And is at least this share of the typical gradient."""
MOST_LOOKS = 96
HALVINGS = 14
FEWEST_CELLS = 2


def kinks_of(exact: Field, axes: Sequence[Axis], gradient: Array) -> tuple[Region, ...]:
    """The curves (points, on a line) across which the gradient jumps."""
    scale = scale_of(axes, gradient)
    cells = np.zeros(gradient.shape[1:], dtype=bool)
    for along in range(len(axes)):
        suspects = _suspects(axes, gradient, along, scale.rise)
        cells |= _spread(suspects & _confirmed(exact, axes, gradient, suspects, along), along)
    fewest = FEWEST_CELLS if len(axes) == 1 else 2 * FEWEST_CELLS
    parts = [part for part in connected(cells) if part.sum() >= fewest]
    return tuple(region_of(axes, part, "kink") for part in parts)


def _suspects(axes: Sequence[Axis], gradient: Array, along: int, rise: float) -> Mask:
    """True at the first of two neighbours between which the gradient changes suddenly."""
    spans = np.array([axis.span for axis in axes]).reshape(-1, *([1] * (gradient.ndim - 1)))
    jump = np.abs(np.diff(gradient * spans, axis=along + 1)).max(axis=0)
    around = np.maximum(_shifted(jump, along, 1), _shifted(jump, along, -1))
    with np.errstate(invalid="ignore"):
        sudden: Mask = (jump > SUDDEN * around) & (jump > NOTICEABLE * rise)
    return np.concatenate([sudden, np.zeros_like(np.take(sudden, [0], axis=along))], axis=along)


def _shifted(jump: Array, along: int, by: int) -> Array:
    """The neighbour's jump; at the edge, its own, which hides it."""
    moved = np.roll(jump, by, axis=along)
    edge = [slice(None)] * jump.ndim
    edge[along] = slice(0, 1) if by > 0 else slice(-1, None)
    moved[tuple(edge)] = jump[tuple(edge)]
    return moved


def _confirmed(exact: Field, axes: Sequence[Axis], gradient: Array, suspects: Mask, along: int) -> Mask:
    """Halve the cell around each suspect: the jump of a kink stays, that of a bend melts away."""
    places = np.argwhere(suspects)
    confirmed = np.zeros_like(suspects)
    if not len(places):
        return confirmed
    looked = places[np.linspace(0, len(places) - 1, min(len(places), MOST_LOOKS)).astype(int)]
    before = np.stack([axis.points[index] for axis, index in zip(axes, looked.T, strict=True)], axis=1)
    after = before.copy()
    after[:, along] = axes[along].points[looked[:, along] + 1]
    first = _jump(exact, before, after)
    for _ in range(HALVINGS):
        middle = (before + after) / 2
        left = _jump(exact, before, middle) >= _jump(exact, middle, after)
        before, after = np.where(left[:, None], before, middle), np.where(left[:, None], middle, after)
    real = _jump(exact, before, after) > 0.5 * first
    if len(looked) < len(places):
        # Too many to look at each: all of a curve are kinks when nearly all that were looked at are.
        confirmed[suspects] = real.mean() > 0.9
    confirmed[tuple(looked[real].T)] = True
    return confirmed


def _jump(exact: Field, before: Array, after: Array) -> Array:
    _, gradient = exact(np.concatenate([before, after]))
    one, other = np.split(gradient, 2, axis=1)
    return np.asarray(np.nan_to_num(np.abs(one - other)).max(axis=0))


def _spread(mask: Mask, along: int) -> Mask:
    """Both neighbours of each jump."""
    moved = np.roll(mask, 1, axis=along)
    return np.asarray(mask | moved)
