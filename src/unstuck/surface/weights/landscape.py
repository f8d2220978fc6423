"""A model's landscape: its loss along directions in the space of its weights, and how sharply it curves there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unstuck.capture.live_objects.restore import untouched
from unstuck.findings.landmarks import Method
from unstuck.findings.surface import Axis, Surface
from unstuck.surface.field import Field, one_line
from unstuck.surface.interpolate import Between
from unstuck.surface.loss import SurfaceError
from unstuck.surface.shape.flow import flow_lines, terrain_of
from unstuck.surface.shape.regions import broken_regions, points_of
from unstuck.surface.shape.stationary import stationary_points
from unstuck.surface.weights.moved import field_along, in_turns
from unstuck.surface.weights.sharpness import top_eigenvalues

Weights = dict[str, Tensor]
MOST_ENDS = 2


def landscape(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    batch: Any,
    *,
    to: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]] = (),
    dimensions: int = 2,
    reach: float = 1.0,
    points: int = 40,
    seed: int = 0,
    eigenvalues: int = 3,
    exact: bool = False,
) -> Surface:
    """The loss of a model on one batch, around its weights.

    Along two random directions, each filter scaled to the model's own (Li et al., 2018), out to `reach`
    times the weights. Or towards other weights: `to=checkpoint` is the line from the model, at 0, to the checkpoint,
    at 1; two checkpoints span a plane. `batch` is an `(inputs, targets)` pair. Gradients are differences between
    neighbouring points, or with `exact` come from a backward pass, for twice the time. The model is left as it was.
    """
    inputs, targets = _pair(batch)
    ends = [to] if isinstance(to, Mapping) else list(to)
    with untouched(model):
        start = {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}
        if not start:
            raise SurfaceError("the model has no weights that train, so there is nothing to move along.")
        ways = _towards(start, ends) if ends else _random(start, dimensions, seed)
        axes = _axes(len(ways), bool(ends), reach, points)
        field = field_along(model, loss_fn, inputs, targets, ways, _first_points(axes), exact)
        seen = _drawn(field, axes, exact)
        return _with_eigenvalues(seen, model, loss_fn, inputs, targets, eigenvalues)


def _pair(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, (list, tuple)) and len(batch) == 2:
        return batch[0], batch[1]
    raise SurfaceError("batch must be a pair of inputs and targets, as the loop draws it.")


def _axes(count: int, ends: bool, reach: float, points: int) -> tuple[Axis, ...]:
    low, high = (-0.25, 1.25) if ends else (-abs(reach), abs(reach))
    names = [f"{'towards checkpoint' if ends else 'direction'} {index + 1}" for index in range(count)]
    return tuple(Axis(name, np.linspace(low, high, points)) for name in names)


def _first_points(axes: Sequence[Axis]) -> Any:
    """Where it is tried out: two points, since each costs a pass of the model."""
    return np.array([[axis.low + axis.span * share for axis in axes] for share in (0.45, 0.62)])


def _random(start: Weights, dimensions: int, seed: int) -> list[Weights]:
    """Directions with filters as long as the model's; biases and norms, which scale freely, stay where they are."""
    generator = torch.Generator().manual_seed(seed)
    ways = []
    for _ in range(dimensions):
        drawn = {name: torch.randn(weight.shape, generator=generator).to(weight) for name, weight in start.items()}
        ways.append({name: _like_filters(way, start[name]) for name, way in drawn.items()})
    return ways


def _like_filters(way: Tensor, weight: Tensor) -> Tensor:
    if weight.dim() < 2:
        return torch.zeros_like(way)
    own, drawn = weight.flatten(1).norm(dim=1), way.flatten(1).norm(dim=1)
    scaled: Tensor = way * (own / drawn.clamp_min(1e-12)).reshape(-1, *[1] * (weight.dim() - 1))
    return scaled


def _towards(start: Weights, ends: Sequence[Mapping[str, Tensor]]) -> list[Weights]:
    if len(ends) > MOST_ENDS:
        raise SurfaceError(f"{len(ends)} checkpoints span more than a plane; give one or two.")
    for end in ends:
        for name, weight in start.items():
            if name not in end or end[name].shape != weight.shape:
                raise SurfaceError(f"the checkpoint does not fit the model: {name} is missing or has another shape.")
    return [{name: end[name].to(weight) - weight for name, weight in start.items()} for end in ends]


def _drawn(field: Field, axes: tuple[Axis, ...], exact: bool) -> Surface:
    """The plane, with what can be read off it without running the model again."""
    shape = tuple(len(axis.points) for axis in axes)
    value, gradient = (array.reshape(*array.shape[:-1], *shape) for array in in_turns(field, points_of(axes)))
    if not exact:
        slopes = np.gradient(value, *(axis.points for axis in axes), edge_order=2)
        gradient = np.asarray(slopes).reshape(len(axes), *shape)
    between = Between(field.loss, axes, value, gradient)
    with np.errstate(all="ignore"):
        bare = Surface(
            field.loss.name,
            axes,
            value,
            gradient,
            stationary=stationary_points(between, axes, value, gradient, ()),
            non_finite=broken_regions(axes, value, gradient),
            marks=(tuple(0.0 for _ in axes),),
            method=field.method,
            notes=_notes(field, value.size),
        )
        return replace(bare, flows=flow_lines(between, terrain_of(bare), bare.marks))


def _notes(field: Field, total: int) -> tuple[str, ...]:
    notes = list(field.remarks)
    if field.method == Method.POINT_BY_POINT:
        notes.append(f"{field.loss.name} does not run under vmap, so it was run once for every point.")
    notes += [f"{field.loss.name} raises at {count / total:.0%}: {what}" for what, count in field.errors.items()]
    return tuple(notes)


def _with_eigenvalues(
    seen: Surface, model: nn.Module, loss_fn: Callable[..., Tensor], inputs: Any, targets: Any, count: int
) -> Surface:
    if count <= 0:
        return seen
    try:
        return replace(seen, eigenvalues=top_eigenvalues(model, loss_fn, inputs, targets, count))
    except RuntimeError as error:
        return replace(seen, notes=(*seen.notes, f"The Hessian cannot be had: {one_line(error)}"))
