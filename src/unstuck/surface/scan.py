"""`unstuck.surface`: a loss over one or two of its inputs, and what is wrong with its shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from unstuck.findings.landmarks import Method, PointKind
from unstuck.findings.surface import Array, Axis, Point, Region, Surface
from unstuck.judge import judge_surface
from unstuck.surface.axes import AxisSpec, axes_of
from unstuck.surface.embeddings import GOAL, SIMILARITY, axis_of as similarities, pairs_of
from unstuck.surface.field import Field, field_of
from unstuck.surface.loss import Loss, SurfaceError, bind, signature_of
from unstuck.surface.shape.checks import disagreements, notes_on, samples_for_method
from unstuck.surface.shape.comparison import comparison_of
from unstuck.surface.shape.flow import descents, terrain_of
from unstuck.surface.shape.kinks import kinks_of
from unstuck.surface.shape.product import factors_of, log_space
from unstuck.surface.shape.regions import Desired, broken_regions, dead_regions, desired_region, lone_points, points_of
from unstuck.surface.shape.stationary import stationary_points
from unstuck.surface.shape.table import flow_table
from unstuck.surface.shape.trace import explain

POINTS = {1: 400, 2: 80}
MOST_SLOW_POINTS = 6_400
MOST_CULPRITS = 4


def surface(
    loss: Any,
    x: AxisSpec = None,
    y: AxisSpec = None,
    *,
    fixed: Mapping[str, Any] | None = None,
    components: Mapping[str, Callable[..., Any]] | None = None,
    desired: Desired = None,
    at: Mapping[str, Sequence[float]] | Iterable[Sequence[float] | float] = (),
    points: int | Sequence[int] | None = None,
    dtype: str | torch.dtype = "float32",
    name: str = "",
) -> Surface:
    """Feed a loss synthetic values: its surface, its gradient field, and what is wrong with its shape.

    An axis is `("margin", -3, 3)`; axes that are not given are read from the signature. `fixed` holds the other
    inputs, such as targets. `components` are named parts of the loss with the same inputs. `desired` is where
    descent should end: `{"margin": (1, 3)}`, a point, or a function of the axes. `at` are your operating points;
    as a mapping, with their names.
    """
    number = _dtype(dtype)
    given = dict(fixed or {})
    axes: tuple[Axis, ...]
    paired = None if y is not None or components or not _may_be_similarity(x) else pairs_of(loss, given, name)
    if paired is not None:
        axes = (x if isinstance(x, Axis) else similarities(points if isinstance(points, int) else POINTS[1]),)
        desired = GOAL if desired is None else desired
    else:
        axes = _axes(loss, x, y, given, points)

    def bound(dtype: torch.dtype) -> Loss:
        return paired[0].bound(dtype) if paired else bind(loss, _names(axes), given, dtype, name)

    field = field_of(bound(number), samples_for_method(axes), number)
    axes, thinned = _thinned(field, axes)
    parts = {key: _component(key, part, axes, given, number) for key, part in (components or {}).items()}
    exact = _double(field, bound, axes)
    named = tuple(at) if isinstance(at, Mapping) else ()
    marks = _marks(at.values() if isinstance(at, Mapping) else at, axes)
    seen = measure(field, exact, axes, desired=desired, marks=marks, mark_names=named, parts=parts)
    seen = _with_log_space(seen, exact, axes)
    compared = paired[1] if paired else comparison_of(exact, axes) if len(axes) > 1 else None
    given_pairs = (paired[0].note(),) if paired else ()
    return judged(replace(seen, comparison=compared, notes=(*given_pairs, *thinned, *seen.notes)))


def _may_be_similarity(x: AxisSpec) -> bool:
    """No axis was named, or the one of another loss is to be used again."""
    return x is None or (isinstance(x, Axis) and x.name == SIMILARITY)


@np.errstate(all="ignore")
def measure(
    field: Field,
    exact: Field,
    axes: tuple[Axis, ...],
    *,
    desired: Desired = None,
    marks: tuple[Point, ...] = (),
    mark_names: tuple[str, ...] = (),
    parts: Mapping[str, Field] | None = None,
) -> Surface:
    """Everything that can be read off the grid and around it. `exact` is the same loss in double precision."""
    grid = points_of(axes)
    shape = tuple(len(axis.points) for axis in axes)
    value, gradient = (array.reshape(*array.shape[:-1], *shape) for array in field(grid))
    components = {key: part(grid)[0].reshape(shape) for key, part in (parts or {}).items()}
    dead = dead_regions(axes, value, gradient)
    still = stationary_points(exact, axes, value, gradient, dead)
    wished = desired_region(axes, desired)
    broken = _explained(field, grid, broken_regions(axes, value, gradient))
    bare = Surface(field.loss.name, axes, value, gradient, components, still, dead, broken, desired=wished)
    bare = replace(bare, marks=marks, mark_names=mark_names)
    table = flow_table({"loss": field, **(parts or {})}, axes, value, bare.named_marks, broken)
    flows, arrivals = descents(exact, terrain_of(bare), marks)
    return replace(
        bare,
        kinks=kinks_of(exact, axes, gradient),
        flows=flows,
        table=table,
        non_finite=(*broken, *_explained(field, grid, lone_points(table, value, broken))),
        method=field.method,
        notes=tuple(notes_on(field, axes, value, gradient)),
        place=field.loss.place,
        arrivals=arrivals,
        disagreements=disagreements(exact, axes, gradient),
    )


def judged(seen: Surface) -> Surface:
    """With what the rules say about it."""
    verdict = judge_surface(seen)
    found = [diagnosis.lead for diagnosis in (*verdict.diagnoses, *verdict.good_news)]
    notes = (*seen.notes, *verdict.failures)
    return replace(seen, findings=tuple(found), rules_checked=len(verdict.checked), notes=notes)


def _axes(
    loss: Any, x: AxisSpec, y: AxisSpec, fixed: Mapping[str, Any], points: int | Sequence[int] | None
) -> tuple[Axis, ...]:
    axes = axes_of(loss, x, y, fixed, POINTS[2] if points is None else points)
    if points is None and len(axes) == 1 and not isinstance(x, Axis) and len(axes[0].points) == POINTS[2]:
        only = axes[0]
        return (Axis(only.name, np.linspace(only.low, only.high, POINTS[1])),)
    return axes


def _names(axes: Sequence[Axis]) -> list[str]:
    return [axis.name for axis in axes]


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise SurfaceError(f"{dtype!r} is not a floating-point type; write float32 or float64.")
    return found


def _marks(at: Iterable[Sequence[float] | float], axes: Sequence[Axis]) -> tuple[Point, ...]:
    marks = []
    for mark in at:
        point = (float(mark),) if isinstance(mark, (int, float)) else tuple(float(value) for value in mark)
        if len(point) != len(axes):
            raise SurfaceError(f"the point {point} has {len(point)} coordinates, but there are {len(axes)} axes.")
        marks.append(point)
    return tuple(marks)


def _thinned(field: Field, axes: tuple[Axis, ...]) -> tuple[tuple[Axis, ...], tuple[str, ...]]:
    """A coarser grid where every point costs a call of its own."""
    total = int(np.prod([len(axis.points) for axis in axes]))
    if field.method != Method.POINT_BY_POINT or total <= MOST_SLOW_POINTS:
        return axes, ()
    count = round(MOST_SLOW_POINTS ** (1 / len(axes)))
    coarse = tuple(Axis(axis.name, np.linspace(axis.low, axis.high, count)) for axis in axes)
    return coarse, (f"The grid has {count} points per axis instead of those asked for, since each is a call.",)


def _component(key: str, part: Any, axes: Sequence[Axis], fixed: Mapping[str, Any], dtype: torch.dtype) -> Field:
    """A part of the loss; it may take only some of the axes and of the fixed inputs."""
    signature = signature_of(part)
    names = _names(axes)
    known = set(signature.parameters) if signature else set(names)
    taken = [index for index, axis in enumerate(names) if axis in known] or list(range(min(len(known), len(axes))))
    some = {name: value for name, value in fixed.items() if name in known}
    inner = bind(part, [names[index] for index in taken], some, dtype, key)
    outer = Loss(key, lambda *all_of: inner(*(all_of[i] for i in taken)), inner.place, inner.fixed_elements)
    return field_of(outer, samples_for_method(axes), dtype)


def _double(field: Field, bound: Callable[[torch.dtype], Loss], axes: Sequence[Axis]) -> Field:
    """The same loss in double precision, or as it is where it does not work in that."""
    if field.dtype == torch.float64:
        return field
    try:
        return field_of(bound(torch.float64), samples_for_method(axes), torch.float64)
    except SurfaceError:
        return field


def _explained(field: Field, grid: Array, regions: tuple[Region, ...]) -> tuple[Region, ...]:
    """The non-finite regions, the larger ones with the operations that make them so."""
    explained = []
    for region in regions[:MOST_CULPRITS]:
        inside = grid[region.cells.ravel()] if region.cells.any() else np.array([region.low])
        culprit, left = explain(field, inside)
        if culprit and culprit.guard:
            culprit = replace(culprit, left=left * region.share)
        explained.append(replace(region, culprit=culprit))
    return (*explained, *regions[MOST_CULPRITS:])


def _with_log_space(seen: Surface, exact: Field, axes: tuple[Axis, ...]) -> Surface:
    """For a product with a saddle: its factors, and the surface it would have in log space."""
    if exact.method != Method.VECTORISED or not any(point.kind == PointKind.SADDLE for point in seen.stationary):
        return seen
    sample = samples_for_method(axes)
    factors = factors_of(exact, sample[0], _names(axes))
    apart = log_space(exact.loss, points_of(axes)) if factors else None
    if apart is None:
        return replace(seen, product=factors)
    field = field_of(apart, sample, exact.dtype)
    return replace(
        seen, product=factors, remedy=measure(field, field, axes, marks=seen.marks, mark_names=seen.mark_names)
    )
