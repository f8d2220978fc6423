"""Points where the gradient vanishes: suspected on the grid, refined by Newton's method, classified by curvature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from unstuck.findings.landmarks import PointKind
from unstuck.findings.surface import Array, Axis, Mask, Region, Stationary
from unstuck.surface.field import Field
from unstuck.surface.shape.regions import connected, rise_of

NEWTON_STEPS = 12
MOST_POINTS = 24
ZOOMS = 14
OBLIQUE = np.array([[1.0, 0.37], [-0.61, 1.0]])
"""Ways to differentiate along. Not the axes: there autograd is often 0 for no reason, as in `sign(a * b)` at b = 0."""
FLAT = 1e-4
"""Curvature below this share of the largest, or of the plane's own, counts as none."""


class Scale(NamedTuple):
    """What counts as large on this plane."""

    spans: Array
    cells: Array
    """The size of one cell along each axis."""
    rise: float
    """The typical gradient, as change of the loss across the plane."""


def scale_of(axes: Sequence[Axis], gradient: Array) -> Scale:
    """Measures taken from the grid."""
    rise = rise_of(axes, gradient)
    alive = rise[np.isfinite(rise) & (rise > 0)]
    spans = np.array([axis.span for axis in axes])
    cells = spans / np.array([len(axis.points) - 1 for axis in axes])
    return Scale(spans, cells, float(np.median(alive)) if alive.size else 0.0)


def stationary_points(
    exact: Field, axes: Sequence[Axis], value: Array, gradient: Array, dead: Sequence[Region]
) -> tuple[Stationary, ...]:
    """Every isolated stationary point that the grid hints at, and minima that sit in a kink."""
    scale = scale_of(axes, gradient)
    starts = _suspects(axes, gradient, dead)
    if not len(starts) or not scale.rise:
        return ()
    found, missed = _refined(exact, starts, scale)
    found += _kinked_minima(exact, missed, axes, scale)
    return tuple(_distinct(sorted(found, key=lambda point: point.value), scale))


def _suspects(axes: Sequence[Axis], gradient: Array, dead: Sequence[Region]) -> Array:
    """The centre of one cell per group of cells in which every component of the gradient changes its sign."""
    corners = [_corners(component) for component in gradient]
    with np.errstate(invalid="ignore"):
        mask: Mask = np.logical_and.reduce([(c.min(axis=0) <= 0) & (c.max(axis=0) >= 0) for c in corners])
    for region in dead:
        mask &= ~_corners(region.cells).any(axis=0)
    steep = sum((_corners(component) ** 2).sum(axis=0) for component in gradient)
    centres = []
    for group in connected(mask):
        cell = np.unravel_index(np.argmin(np.where(group, steep, np.inf)), group.shape)
        centres.append([axis.points[i : i + 2].mean() for axis, i in zip(axes, cell, strict=True)])
    return np.array(centres[:MOST_POINTS]).reshape(-1, len(axes))


def _corners(array: Array | Mask) -> Array:
    """The values at the corners of every cell, stacked in front."""
    if array.ndim == 1:
        return np.stack([array[:-1], array[1:]])
    return np.stack([array[:-1, :-1], array[1:, :-1], array[:-1, 1:], array[1:, 1:]])


def _refined(exact: Field, starts: Array, scale: Scale) -> tuple[list[Stationary], Array]:
    """Newton's method from every start at once; what does not come to rest nearby is returned as missed."""
    points = starts.copy()
    for _ in range(NEWTON_STEPS):
        _, gradient = exact(points)
        step = np.stack([_newton_step(h, g) for h, g in zip(hessians(exact, points, scale), gradient.T, strict=True)])
        points = points + np.clip(step, -scale.cells, scale.cells)
    value, gradient = exact(points)
    rest = np.sqrt(((gradient.T * scale.spans) ** 2).sum(axis=1)) <= 1e-4 * scale.rise
    near = (np.abs(points - starts) <= 2 * scale.cells).all(axis=1)
    kept = rest & near & np.isfinite(value)
    curved = hessians(exact, points, scale)
    # Where the gradient jumps, a single point may have none, but already a hair beside it there is plenty.
    tilt = np.abs(curved * np.outer(scale.spans, scale.spans)).max(axis=(1, 2), initial=0.0) * _width(exact)
    kept &= tilt <= 0.05 * scale.rise
    found = [
        _stationary(point, worth, hessian, scale)
        for point, worth, hessian in zip(points[kept], value[kept], curved[kept], strict=True)
    ]
    return found, starts[~kept]


def hessians(exact: Field, points: Array, scale: Scale) -> Array:
    """(n, d, d) second derivatives, as central differences of the exact gradient."""
    count, dimensions = points.shape
    width = _width(exact)
    ways = OBLIQUE[:dimensions, :dimensions]
    shifts = [sign * width * way * scale.spans for way in ways for sign in (1, -1)]
    _, gradient = exact(np.concatenate([points + shift for shift in shifts]))
    parts = (gradient * scale.spans[:, None]).reshape(dimensions, 2 * dimensions, count)
    along = (parts[:, ::2] - parts[:, 1::2]) / (2 * width)
    hessian = along.transpose(2, 0, 1) @ np.linalg.inv(ways.T) / np.outer(scale.spans, scale.spans)
    symmetric: Array = (hessian + hessian.transpose(0, 2, 1)) / 2
    return symmetric


def _width(exact: Field) -> float:
    """Of a difference, as a share of the plane: small, but well above the rounding of the gradient."""
    return 1e-5 if exact.dtype.itemsize == 8 else 2e-3


def _newton_step(hessian: Array, gradient: Array) -> Array:
    if not (np.isfinite(hessian).all() and np.isfinite(gradient).all()):
        return np.zeros_like(gradient)
    step: Array = -np.linalg.pinv(hessian, rcond=1e-9) @ gradient
    return step


def _stationary(at: Array, value: float, hessian: Array, scale: Scale) -> Stationary:
    plain = np.linalg.eigvalsh(hessian)
    # Axes may have very different units: what is flat is decided in units of the plane.
    even = np.asarray(np.linalg.eigvalsh(hessian * np.outer(scale.spans, scale.spans)), dtype=np.float64)
    flat = np.abs(even) <= FLAT * max(float(np.abs(even).max()), scale.rise)
    return Stationary(tuple(map(float, at)), float(value), _kind(even, flat), tuple(map(float, plain)))


def _kind(curvature: Array, flat: Mask) -> PointKind:
    curved = curvature[~flat]
    if (curved > 0).any() and (curved < 0).any():
        return PointKind.SADDLE
    if flat.any():
        return PointKind.DEGENERATE
    return PointKind.MINIMUM if (curvature > 0).all() else PointKind.MAXIMUM


def _kinked_minima(exact: Field, starts: Array, axes: Sequence[Axis], scale: Scale) -> list[Stationary]:
    """Where the gradient changes sign without vanishing: look closer and closer for the lowest value."""
    found = []
    offsets = np.stack(np.meshgrid(*[np.linspace(-1, 1, 9)] * len(axes), indexing="ij"), axis=-1).reshape(-1, len(axes))
    low, high = np.array([axis.low for axis in axes]), np.array([axis.high for axis in axes])
    for start in starts:
        at, reach = start, scale.cells * 2
        for _ in range(ZOOMS):
            around = np.clip(at + offsets * reach, low, high)
            values, _ = exact(around)
            if not np.isfinite(values).any():
                break
            at, reach = around[np.nanargmin(values)], reach / 3
        else:
            if (np.abs(at - start) < 1.9 * scale.cells).all():
                found.append(_kinked(exact, at, scale))
    return [point for point in found if point]


def _kinked(exact: Field, at: Array, scale: Scale) -> Stationary | None:
    """A minimum at a kink: the gradient next to it is not small, and points away on both sides of some axis."""
    width = scale.spans * 1e-4
    sides = np.concatenate([at + np.diag(width), at - np.diag(width)])
    values, gradient = exact(sides)
    (value,), _ = exact(at[None])
    dimensions = len(at)
    slopes = np.array([(gradient[i, i], gradient[i, dimensions + i]) for i in range(dimensions)])
    jumps = (slopes[:, 0] - slopes[:, 1]) * scale.spans > 0.05 * scale.rise
    lowest = (values >= value - 1e-9 * scale.rise).all()
    if not (jumps.any() and lowest):
        return None
    curvature = tuple(float("inf") if jump else 0.0 for jump in sorted(jumps))
    return Stationary(tuple(map(float, at)), float(value), PointKind.MINIMUM, curvature)


def _distinct(points: Sequence[Stationary], scale: Scale) -> list[Stationary]:
    kept: list[Stationary] = []
    for point in points:
        apart = [np.abs(np.array(point.at) - np.array(other.at)) / scale.cells for other in kept]
        if all(distance.max() > 0.5 for distance in apart):
            kept.append(point)
    return kept
