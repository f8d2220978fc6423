"""Connected parts of the grid: where there is no gradient, where nothing is finite, where the user wants to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unstuck.findings.surface import Array, Axis, FlowRow, Mask, Point, Region
from unstuck.surface.loss import SurfaceError

ZERO = 1e-6
"""A gradient this small, as a share of the typical one on the plane, moves nothing."""
SAME_VALUE = 1e-6
SMALLEST_SHARE = 0.02
SMALLEST_CELLS = 4


def points_of(axes: Sequence[Axis]) -> Array:
    """Every point of the grid as a row, in the order of `Surface.value.ravel()`."""
    meshes = np.meshgrid(*(axis.points for axis in axes), indexing="ij")
    points: Array = np.stack([mesh.ravel() for mesh in meshes], axis=1)
    return points


def dead_regions(axes: Sequence[Axis], value: Array, gradient: Array) -> tuple[Region, ...]:
    """Where the gradient is zero over a stretch of the grid, largest first."""
    rise = rise_of(axes, gradient)
    alive = rise[np.isfinite(rise) & (rise > 0)]
    if not alive.size:
        return _large(axes, np.isfinite(value) & (rise == 0), value)
    return _large(axes, np.isfinite(value) & (rise <= ZERO * np.median(alive)), value)


def rise_of(axes: Sequence[Axis], gradient: Array) -> Array:
    """The gradient's norm in units of the plane: how much the loss would change from one side to the other."""
    spans = np.array([axis.span for axis in axes]).reshape(-1, *([1] * (gradient.ndim - 1)))
    rise: Array = np.sqrt(((gradient * spans) ** 2).sum(axis=0))
    return rise


def _large(axes: Sequence[Axis], mask: Mask, value: Array) -> tuple[Region, ...]:
    regions = [region_of(axes, cells, "zero gradient", value) for cells in connected(mask)]
    kept = [r for r in regions if r.share >= SMALLEST_SHARE and r.cells.sum() >= SMALLEST_CELLS]
    return tuple(sorted(kept, key=lambda region: -region.share))


def broken_regions(axes: Sequence[Axis], value: Array, gradient: Array) -> tuple[Region, ...]:
    """Where the loss, or only its gradient, is NaN or infinite; largest first."""
    bad_loss = ~np.isfinite(value)
    bad_gradient = ~np.isfinite(gradient).all(axis=0) & ~bad_loss
    regions = [region_of(axes, cells, "loss") for cells in connected(bad_loss)]
    regions += [region_of(axes, cells, "gradient") for cells in connected(bad_gradient)]
    return tuple(sorted(regions, key=lambda region: -region.share))


def lone_points(table: Sequence[FlowRow], value: Array, known: Sequence[Region]) -> tuple[Region, ...]:
    """Inputs of the table, such as zero, that are not finite though the grid around them is: regions of no cells."""
    flags = {row.at: row.flag for row in reversed(table) if row.component == "loss" and row.flag.startswith("non-")}
    covered = [
        at
        for at in flags
        for region in known
        if all(low <= a <= high for low, a, high in zip(region.low, at, region.high, strict=True))
    ]
    nowhere = np.zeros(value.shape, dtype=bool)
    return tuple(Region(at, at, 0.0, nowhere, flag.split()[-1]) for at, flag in flags.items() if at not in covered)


def region_of(axes: Sequence[Axis], cells: Mask, label: str, value: Array | None = None) -> Region:
    """The box, the share and, if it is one, the value of these cells."""
    where = np.nonzero(cells)
    low = tuple(float(axis.points[index.min()]) for axis, index in zip(axes, where, strict=True))
    high = tuple(float(axis.points[index.max()]) for axis, index in zip(axes, where, strict=True))
    return Region(low, high, float(cells.mean()), cells, label, None if value is None else _one_value(value, cells))


def _one_value(value: Array, cells: Mask) -> float | None:
    finite = value[np.isfinite(value)]
    inside = value[cells]
    spread = SAME_VALUE * (finite.max() - finite.min()) if finite.size else 0.0
    return float(inside[0]) if np.isfinite(inside).all() and np.ptp(inside) <= spread else None


def connected(mask: Mask) -> Iterator[Mask]:
    """The parts of a mask that touch, also at corners."""
    labels, count = _labels(mask if mask.ndim == 2 else mask[:, None])
    for label in range(1, count + 1):
        yield (labels == label).reshape(mask.shape)


def _labels(mask: Mask) -> tuple[NDArray[np.int64], int]:
    """Number the parts from 1: runs of each row, joined with those they touch in the row before."""
    labels = np.zeros(mask.shape, dtype=np.int64)
    parent = [0]
    for row in range(mask.shape[0]):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], mask[row].astype(np.int8), [0]))))
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            above = labels[row - 1, max(0, start - 1) : stop + 1] if row else np.zeros(0, dtype=np.int64)
            roots = {_root(parent, int(label)) for label in np.unique(above[above > 0])}
            if not roots:
                parent.append(len(parent))
                roots = {len(parent) - 1}
            first = min(roots)
            for other in roots:
                parent[other] = first
            labels[row, start:stop] = first
    numbers: dict[int, int] = {0: 0}
    final = [numbers.setdefault(_root(parent, label), len(numbers)) for label in range(len(parent))]
    return np.array(final)[labels], len(numbers) - 1


def _root(parent: list[int], label: int) -> int:
    while parent[label] != label:
        label = parent[label]
    return label


Desired = Mapping[str, tuple[float, float]] | Sequence[float] | Callable[..., Any] | None
"""Ranges by axis name, a point, or a function of the axes' values that is true where descent should end."""


def desired_region(axes: Sequence[Axis], desired: Desired) -> Region | None:
    """The cells where the user wants descent to end."""
    if desired is None:
        return None
    meshes = np.meshgrid(*(axis.points for axis in axes), indexing="ij")
    if isinstance(desired, Mapping):
        cells = _between(axes, meshes, desired)
    elif callable(desired):
        cells = np.broadcast_to(np.asarray(desired(*meshes), dtype=bool), meshes[0].shape)
    else:
        cells = _around(axes, meshes, tuple(float(coordinate) for coordinate in desired))
    if not cells.any():
        raise SurfaceError("the desired region holds no point of the grid; widen it or the axes.")
    return region_of(axes, cells, "desired")


def _between(axes: Sequence[Axis], meshes: Sequence[Array], ranges: Mapping[str, tuple[float, float]]) -> Mask:
    names = [axis.name for axis in axes]
    for name in ranges:
        if name not in names:
            raise SurfaceError(f"the desired region names {name!r}, which is none of the axes {', '.join(names)}.")
    cells = np.ones(meshes[0].shape, dtype=bool)
    for axis, mesh in zip(axes, meshes, strict=True):
        low, high = ranges.get(axis.name, (-np.inf, np.inf))
        cells &= (mesh >= low) & (mesh <= high)
    return cells


def _around(axes: Sequence[Axis], meshes: Sequence[Array], at: Point) -> Mask:
    """A point stands for everything within a tenth of the plane around it."""
    if len(at) != len(axes):
        raise SurfaceError(f"the desired point has {len(at)} coordinates, but there are {len(axes)} axes.")
    away = [(mesh - coordinate) / axis.span for axis, mesh, coordinate in zip(axes, meshes, at, strict=True)]
    near: Mask = np.sqrt(sum(distance**2 for distance in away)) <= 0.1
    return near
