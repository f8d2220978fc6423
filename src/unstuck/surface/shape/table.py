"""The gradient-flow table: what each component gives, and passes on, at inputs that matter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from unstuck.findings.surface import Array, Axis, FlowRow, Point, Region
from unstuck.surface.field import Field

SMALL = 0.01
"""Of the axis, away from zero."""
AT_LOWEST = 1e-6
"""Of the range of the loss."""


def flow_table(
    fields: Mapping[str, Field],
    axes: Sequence[Axis],
    value: Array,
    marks: Sequence[tuple[str, Point]],
    broken: Sequence[Region],
) -> tuple[FlowRow, ...]:
    """One row for every component, parameter and representative input."""
    inputs = list(dict.fromkeys(_representative(axes, value, marks, broken)))
    points = np.array([at for _, at in inputs])
    rows = []
    floor = _floor(value)
    for component, field in fields.items():
        values, gradients = field(points)
        for (label, at), loss, slope in zip(inputs, values, gradients.T, strict=True):
            for axis, part in zip(axes, slope, strict=True):
                flag = _flag(loss, part, content=component == "loss" and loss <= floor)
                rows.append(FlowRow(component, axis.name, label, at, float(loss), float(part), flag))
    return tuple(rows)


def _representative(
    axes: Sequence[Axis], value: Array, marks: Sequence[tuple[str, Point]], broken: Sequence[Region]
) -> Iterator[tuple[str, Point]]:
    for name, mark in marks:
        yield name or "operating point", mark
    yield "zero", tuple(_nearest(axis, 0.0) for axis in axes)
    yield "small", tuple(_nearest(axis, SMALL * axis.span) for axis in axes)
    finite = np.where(np.isfinite(value), value, np.nan)
    if np.isfinite(value).any():
        yield "converged", _at(axes, int(np.nanargmin(finite)), value.shape)
    if broken:
        cells = np.flatnonzero(broken[0].cells)
        yield "degenerate", _at(axes, int(cells[len(cells) // 2]), value.shape)
    elif np.isfinite(value).any():
        yield "degenerate", _at(axes, int(np.nanargmax(finite)), value.shape)


def _nearest(axis: Axis, wanted: float) -> float:
    """`wanted` itself where the axis has it, else the end of the axis that comes closest."""
    return float(min(max(wanted, axis.low), axis.high))


def _at(axes: Sequence[Axis], flat: int, shape: tuple[int, ...]) -> Point:
    index = np.unravel_index(flat, shape)
    return tuple(float(axis.points[i]) for axis, i in zip(axes, index, strict=True))


def _floor(value: Array) -> float:
    """Up to here the loss is at its lowest, where no gradient is what one wants."""
    finite = value[np.isfinite(value)]
    return float(finite.min() + AT_LOWEST * (finite.max() - finite.min())) if finite.size else -np.inf


def _flag(loss: float, slope: float, content: bool) -> str:
    if not np.isfinite(loss):
        return "non-finite loss"
    if not np.isfinite(slope):
        return "non-finite gradient"
    return "zero gradient" if slope == 0 and not content else ""
