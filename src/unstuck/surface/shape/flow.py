"""Where descent goes: paths from starts on the plane, and how they end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from unstuck.findings.landmarks import End, Method, PointKind
from unstuck.findings.surface import (
    Array,
    Arrivals,
    Axis,
    Destination,
    FlowLine,
    Mask,
    Point,
    Region,
    Stationary,
    Surface,
)
from unstuck.surface.field import Field
from unstuck.surface.shape.regions import ZERO, connected
from unstuck.surface.shape.stationary import Scale, scale_of

Cell = tuple[int, ...]
"""Indices of a point of the grid."""
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
BARRIER = 0.1
"""Two places are one unless the way between them rises by this share of the plane's typical height. The ripples that a
grid makes of a narrow valley across it are a quarter of that."""
AT_REST = (End.MINIMUM, End.LOCAL_MINIMUM, End.LOWEST_EDGE, End.EDGE, End.DESIRED)
"""Endings of descent that came to rest where there is something to follow: not on a flat part, nor on its way."""


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
    grid: Array
    """The value at every point of the grid."""

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
    height = seen.highest - seen.lowest
    return Terrain(seen.axes, scale, seen.lowest, height, typical, seen.stationary, seen.desired, seen.value)


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
    sparse = exact.method == Method.POINT_BY_POINT
    count = (12 if sparse else 40) if len(terrain.axes) == 1 else (5 if sparse else 12)
    shown = _drawn_starts(terrain, marks)
    starts = np.concatenate([shown, terrain.spread(count)])
    steps = SPARSE_STEPS if sparse else STEPS
    descent = _descend(exact, terrain, starts, steps)
    endings = [_ending(terrain, descent, index) for index in range(len(starts))]
    words = endings[len(shown) :]
    settled = [len(shown) + index for index, word in enumerate(words) if word in AT_REST]
    arrivals = Arrivals(
        len(words),
        {word: words.count(word) / len(words) for word in sorted(set(words))},
        _destinations(terrain, descent, settled, len(words)),
        steps,
    )
    # What SGD and Adam do is drawn from the marks, or else from the first start.
    optimized = _optimized(exact, terrain, shown[: max(1, len(marks))])
    return (*_flows(terrain, descent, len(shown)), *optimized), arrivals


def _destinations(terrain: Terrain, descent: _Descent, settled: Sequence[int], starts: int) -> tuple[Destination, ...]:
    """The endings, those together that can be reached from each other without climbing."""
    flood = _Flood(terrain)
    value = {index: float(descent.value[index]) for index in settled}
    cell = {index: _cell(terrain.axes, descent.path[-1, index]) for index in settled}
    groups: list[list[int]] = []
    for index in sorted(settled, key=lambda index: value[index]):
        known = (group for group in groups if flood.joins(cell[group[0]], cell[index], value[index]))
        group = next(known, None)
        groups.append([index]) if group is None else group.append(index)
    groups.sort(key=len, reverse=True)
    mirrors = _mirrors(terrain)
    found: list[Destination] = []
    for number, (first, *others) in enumerate(groups):
        images = [mirror(cell[first]) for mirror in mirrors]
        more_frequent = [(cell[group[0]], max(value[first], value[group[0]])) for group in groups[:number]]
        reflected = any(flood.joins(image, known, level) for image in images for known, level in more_frequent)
        at, slope = descent.path[-1, first], descent.gradient[first]
        share = (1 + len(others)) / starts
        found.append(
            Destination(tuple(map(float, at)), value[first], share, float(np.sqrt((slope**2).sum())), reflected)
        )
    return tuple(found)


class _Flood:
    """The plane under water: which points can be reached from each other without climbing."""

    def __init__(self, terrain: Terrain) -> None:
        self._terrain, self._room = terrain, BARRIER * terrain.typical_height
        self._parts: dict[int, Array] = {}

    def joins(self, one: Cell, other: Cell, value: float) -> bool:
        """Are both in one part of what is hardly higher than this value?"""
        level = int((value - self._terrain.lowest) / self._room) if self._room > 0 else 0
        parts = self._parts.get(level)
        if parts is None:
            parts = self._parts[level] = np.zeros(self._terrain.grid.shape)
            with np.errstate(invalid="ignore"):
                below: Mask = self._terrain.grid <= self._terrain.lowest + (level + 1) * self._room
            for number, part in enumerate(connected(below), 1):
                parts[part] = number
        return bool(parts[one] == parts[other])


def _mirrors(terrain: Terrain) -> list[Callable[[Cell], Cell]]:
    """Ways to mirror the plane that leave the loss as it is."""
    grid = terrain.grid
    last = tuple(size - 1 for size in grid.shape)
    ways: list[tuple[Array, Callable[[Cell], Cell]]] = [(np.flip(grid), lambda at: _flipped(at, last, range(len(at))))]
    if grid.ndim == 2:
        ways += [(np.flip(grid, 0), lambda at: _flipped(at, last, (0,)))]
        ways += [(np.flip(grid, 1), lambda at: _flipped(at, last, (1,)))]
        if last[0] == last[1]:
            ways += [(grid.T, lambda at: at[::-1])]
            ways += [(np.flip(grid).T, lambda at: _flipped(at[::-1], last, (0, 1)))]
    room = NEAR_LOWEST * terrain.typical_height
    return [mirror for image, mirror in ways if np.allclose(grid, image, rtol=1e-3, atol=room, equal_nan=True)]


def _flipped(at: Cell, last: Cell, axes: Sequence[int]) -> Cell:
    return tuple(end - index if axis in axes else index for axis, (index, end) in enumerate(zip(at, last, strict=True)))


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


def _ending(terrain: Terrain, descent: _Descent, index: int) -> End:
    at, value = descent.path[-1, index], float(descent.value[index])
    if terrain.desired is not None and terrain.desired.cells[_cell(terrain.axes, at)]:
        return End.DESIRED
    if descent.blocked[index]:
        return End.NON_FINITE
    if value < terrain.lowest - terrain.height:
        return End.BOTTOMLESS
    at_edge = bool(((at <= terrain.low) | (at >= terrain.high)).any())
    if terrain.is_lowest(value):
        return End.LOWEST_EDGE if at_edge else End.MINIMUM
    minimum = _minimum_near(terrain, at)
    if minimum is not None:
        return End.MINIMUM if terrain.is_lowest(minimum.value) else End.LOCAL_MINIMUM
    pull = _step(terrain, at[None], descent.gradient[index][None], np.ones(1))[0]
    steep = float(np.abs(descent.gradient[index] * terrain.scale.spans * (pull != 0)).max())
    if steep <= 100 * ZERO * terrain.scale.rise:
        return End.EDGE if at_edge and not _is_flat(terrain, descent.gradient[index]) else End.STUCK
    return End.MOVING


def _is_flat(terrain: Terrain, gradient: Array) -> bool:
    return float(np.abs(gradient * terrain.scale.spans).max()) <= ZERO * terrain.scale.rise


def _minimum_near(terrain: Terrain, at: Array) -> Stationary | None:
    minima = [point for point in terrain.stationary if point.kind in (PointKind.MINIMUM, PointKind.DEGENERATE)]
    near = [m for m in minima if (np.abs(at - np.array(m.at)) <= 2 * terrain.scale.cells).all()]
    return near[0] if near else None


def _cell(axes: Sequence[Axis], at: Array) -> Cell:
    """The point of the grid that is nearest."""
    return tuple(int(np.abs(axis.points - value).argmin()) for axis, value in zip(axes, at, strict=True))


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
    left = [End.NON_FINITE if stopped else End.EDGE for stopped in blocked]
    endings = [_ending(terrain, descent, i) if inside[i] else left[i] for i in range(2 * count)]
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
