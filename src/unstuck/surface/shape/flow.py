"""Where descent goes: paths from starts on the plane, and how they end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from unstuck.findings.surface import Array, Arrivals, Axis, FlowLine, Mask, Point, Region, Stationary, Surface
from unstuck.surface.field import Field
from unstuck.surface.shape.regions import ZERO
from unstuck.surface.shape.stationary import Scale, scale_of

LONGEST_STEP = 1 / 50
"""Of the plane, for one step of the flow."""
SHORTEST_STEP = 1e-6
STEPS = 240
SPARSE_STEPS = 80
OPTIMIZER_STEPS = 120
DRAWN = {1: 4, 2: 3}
"""How many starts along each axis are drawn, on a line and on a plane."""
OFFSETS = (0.42, 0.55)
"""Starts avoid axes of symmetry, from which descent would run into a saddle that nobody meets by chance."""
NEAR_LOWEST = 1e-3
"""A value within this share of the plane's typical height from the lowest counts as the lowest."""


@dataclass(frozen=True)
class Terrain:
    """What descent needs to know about the plane."""

    axes: tuple[Axis, ...]
    scale: Scale
    lowest: float
    height: float
    """From the lowest to the highest value."""
    typical_height: float
    """From the lowest to the median value, or to the mean where more than half is lowest."""
    stationary: Sequence[Stationary]
    desired: Region | None

    @property
    def low(self) -> Array:
        """The lower corner."""
        return np.array([axis.low for axis in self.axes])

    @property
    def high(self) -> Array:
        """The upper corner."""
        return np.array([axis.high for axis in self.axes])

    def is_lowest(self, value: float) -> bool:
        """Is this, for all purposes, the lowest value of the plane?"""
        return value <= self.lowest + NEAR_LOWEST * self.typical_height

    def spread(self, count: int) -> Array:
        """`count` starts along each axis, away from the edges."""
        shifts = zip(self.axes, OFFSETS, strict=False)
        lines = [axis.low + axis.span * (np.arange(count) + shift) / count for axis, shift in shifts]
        starts: Array = np.stack([mesh.ravel() for mesh in np.meshgrid(*lines, indexing="ij")], axis=1)
        return starts


def terrain_of(seen: Surface) -> Terrain:
    """The plane of a surface whose gradients and stationary points are known."""
    above = seen.value[np.isfinite(seen.value)] - seen.lowest
    typical = float(np.median(above) or above.mean()) if above.size else 0.0
    scale = scale_of(seen.axes, seen.gradient)
    return Terrain(seen.axes, scale, seen.lowest, seen.highest - seen.lowest, typical, seen.stationary, seen.desired)


@dataclass(frozen=True)
class _Descent:
    path: Array
    """(steps, n, d)"""
    value: Array
    gradient: Array
    """(n, d), where it ended"""
    blocked: Mask
    """Ended at the edge of, or inside, a region that is not finite."""


def descents(exact: Field, terrain: Terrain, marks: Sequence[Point]) -> tuple[tuple[FlowLine, ...], Arrivals]:
    """Paths to draw, and where gradient flow ends from starts all over the plane."""
    sparse = exact.method == "point by point"
    count = (12 if sparse else 40) if len(terrain.axes) == 1 else (5 if sparse else 12)
    shown = _drawn_starts(terrain, marks)
    starts = np.concatenate([shown, terrain.spread(count)])
    descent = _descend(exact, terrain, starts, SPARSE_STEPS if sparse else STEPS)
    endings = [_ending(terrain, descent, index) for index in range(len(starts))]
    words = endings[len(shown) :]
    arrivals = Arrivals(len(words), {word: words.count(word) / len(words) for word in sorted(set(words))})
    # What SGD and Adam do is drawn from the marks, or else from the first start.
    optimized = _optimized(exact, terrain, shown[: max(1, len(marks))])
    return (*_flows(terrain, descent, len(shown)), *optimized), arrivals


def flow_lines(exact: Field, terrain: Terrain, marks: Sequence[Point]) -> tuple[FlowLine, ...]:
    """Only gradient flow from the starts that are drawn, for a plane in which no optimizer would stay."""
    shown = _drawn_starts(terrain, marks)
    return _flows(terrain, _descend(exact, terrain, shown, SPARSE_STEPS), len(shown))


def _drawn_starts(terrain: Terrain, marks: Sequence[Point]) -> Array:
    own = np.array(marks).reshape(-1, len(terrain.axes))
    return np.concatenate([own, terrain.spread(DRAWN[len(terrain.axes)])])


def _flows(terrain: Terrain, descent: _Descent, count: int) -> tuple[FlowLine, ...]:
    paths = [_without_stops(descent.path[:, index]) for index in range(count)]
    return tuple(FlowLine("flow", path, _ending(terrain, descent, index)) for index, path in enumerate(paths))


def _descend(exact: Field, terrain: Terrain, starts: Array, steps: int) -> _Descent:
    """Gradient flow inside the box, all starts at once: steps shrink where the loss would rise."""
    at = np.clip(starts, terrain.low, terrain.high)
    value, gradient = exact(at)
    slope = gradient.T
    reach = np.full(len(at), LONGEST_STEP)
    blocked = ~(np.isfinite(value) & np.isfinite(slope).all(axis=1))
    path = [at]
    for _ in range(steps):
        moving = ~blocked & (reach > SHORTEST_STEP)
        if not moving.any():
            break
        ahead = np.clip(at + _step(terrain, at, slope, reach), terrain.low, terrain.high)
        new_value, new_gradient = _only(exact, ahead, moving)
        finite = np.isfinite(new_value) & np.isfinite(new_gradient).all(axis=0)
        better = moving & finite & (new_value < value)
        at = np.where(better[:, None], ahead, at)
        value = np.where(better, new_value, value)
        slope = np.where(better[:, None], new_gradient.T, slope)
        blocked |= moving & ~finite & (reach < 100 * SHORTEST_STEP)
        reach = np.where(better, np.minimum(reach * 1.3, LONGEST_STEP), reach * 0.4)
        path.append(at)
    return _Descent(np.stack(path), value, slope, blocked)


def _only(exact: Field, points: Array, wanted: Mask) -> tuple[Array, Array]:
    """Values and gradients at the wanted points; NaN at the others, which are not worth a call."""
    value, gradient = np.full(len(points), np.nan), np.full(points.shape[::-1], np.nan)
    if wanted.any():
        value[wanted], gradient[:, wanted] = exact(points[wanted])
    return value, gradient


def _step(terrain: Terrain, at: Array, slope: Array, reach: Array) -> Array:
    """Against the gradient, along the edge where it points out of the box."""
    pull = -np.nan_to_num(slope)
    outward = ((at <= terrain.low) & (pull < 0)) | ((at >= terrain.high) & (pull > 0))
    pull = np.where(outward, 0.0, pull)
    longest = np.abs(pull / terrain.scale.spans).max(axis=1)
    step: Array = pull * (reach / np.where(longest > 0, longest, np.inf))[:, None]
    return step


def _ending(terrain: Terrain, descent: _Descent, index: int) -> str:
    at, value = descent.path[-1, index], float(descent.value[index])
    if terrain.desired is not None and _inside(terrain.axes, terrain.desired, at):
        return "desired region"
    if descent.blocked[index]:
        return "non-finite"
    if value < terrain.lowest - terrain.height:
        return "bottomless"
    at_edge = bool(((at <= terrain.low) | (at >= terrain.high)).any())
    if terrain.is_lowest(value):
        return "lowest edge" if at_edge else "minimum"
    minimum = _minimum_near(terrain, at)
    if minimum is not None:
        return "minimum" if terrain.is_lowest(minimum.value) else "local minimum"
    pull = _step(terrain, at[None], descent.gradient[index][None], np.ones(1))[0]
    steep = float(np.abs(descent.gradient[index] * terrain.scale.spans * (pull != 0)).max())
    if steep <= 100 * ZERO * terrain.scale.rise:
        return "edge of the plane" if at_edge and not _is_flat(terrain, descent.gradient[index]) else "stuck"
    return "still moving"


def _is_flat(terrain: Terrain, gradient: Array) -> bool:
    return float(np.abs(gradient * terrain.scale.spans).max()) <= ZERO * terrain.scale.rise


def _minimum_near(terrain: Terrain, at: Array) -> Stationary | None:
    minima = [point for point in terrain.stationary if point.kind in ("minimum", "degenerate")]
    near = [m for m in minima if (np.abs(at - np.array(m.at)) <= 2 * terrain.scale.cells).all()]
    return near[0] if near else None


def _inside(axes: Sequence[Axis], region: Region, at: Array) -> bool:
    nearest = tuple(int(np.abs(axis.points - value).argmin()) for axis, value in zip(axes, at, strict=True))
    return bool(region.cells[nearest])


def _without_stops(path: Array) -> Array:
    """Without the steps at which it no longer moved."""
    moved = np.flatnonzero(np.any(np.diff(path, axis=0) != 0, axis=1))
    kept = np.concatenate([[0], moved + 1])
    cut: Array = path[kept]
    return cut


def _optimized(exact: Field, terrain: Terrain, starts: Array) -> list[FlowLine]:
    """What SGD and Adam do from these starts, with a step that suits the plane, until they leave it."""
    count = len(starts)
    at = np.concatenate([starts, starts])
    _, gradient = exact(at)
    sgd, adam = _sgd(terrain, gradient.T[:count]), _adam(terrain, count)
    path, inside, blocked = [at], np.ones(2 * count, dtype=bool), np.zeros(2 * count, dtype=bool)
    for _ in range(OPTIMIZER_STEPS):
        blocked |= inside & ~np.isfinite(gradient).all(axis=0)
        inside &= ~blocked
        slope = np.where(inside[:, None], gradient.T, 0.0)
        ahead = at - np.concatenate([sgd(slope[:count]), adam(slope[count:])])
        at = np.where(inside[:, None], np.clip(ahead, terrain.low, terrain.high), at)
        inside &= (at == ahead).all(axis=1)
        path.append(at)
        value, gradient = _only(exact, at, inside)
    descent = _Descent(np.stack(path), value, gradient.T, blocked)
    left = np.where(blocked, "non-finite", "edge of the plane")
    endings = [_ending(terrain, descent, i) if inside[i] else str(left[i]) for i in range(2 * count)]
    paths = [_without_stops(descent.path[:, i]) for i in range(2 * count)]
    names = ["sgd"] * count + ["adam"] * count
    return [FlowLine(*line) for line in zip(names, paths, endings, strict=True)]


def _sgd(terrain: Terrain, first: Array) -> Callable[[Array], Array]:
    """The first step, or a typical one where the start has no slope, is a fiftieth of the plane."""
    steep = np.abs(np.nan_to_num(first) / terrain.scale.spans).max(axis=1)
    typical = terrain.scale.rise / float((terrain.scale.spans**2).max())
    rate = LONGEST_STEP / np.maximum(np.maximum(steep, typical), 1e-30)
    return lambda slope: np.asarray(rate[:, None] * slope)


def _adam(terrain: Terrain, starts: int) -> Callable[[Array], Array]:
    """Adam with its usual betas, stepping a hundredth of the shorter axis."""
    rate = terrain.scale.spans.min() / 100
    mean, square, count = np.zeros((starts, len(terrain.axes))), np.zeros((starts, len(terrain.axes))), 0

    def move(slope: Array) -> Array:
        nonlocal mean, square, count
        count += 1
        mean = 0.9 * mean + 0.1 * slope
        square = 0.999 * square + 0.001 * slope**2
        return np.asarray(rate * (mean / (1 - 0.9**count)) / (np.sqrt(square / (1 - 0.999**count)) + 1e-8))

    return move
