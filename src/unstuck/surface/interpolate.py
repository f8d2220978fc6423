"""A field between the points of a grid that is already known, where evaluating the loss again is dear."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from unstuck.surface.field import Field
from unstuck.surface.loss import Loss
from unstuck.surface.model import Array, Axis


def interpolated(loss: Loss, axes: Sequence[Axis], value: Array, gradient: Array) -> Field:
    """Values and gradients in proportion to the nearest points of the grid."""
    stack = np.concatenate([value[None], gradient])

    def evaluate(coordinates: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        places = [_place(axis, coordinate.numpy()) for axis, coordinate in zip(axes, coordinates, strict=True)]
        found = np.zeros((len(stack), len(coordinates[0])))
        for corner in np.ndindex(*[2] * len(axes)):
            index = tuple(low + side for (low, _), side in zip(places, corner, strict=True))
            sides = zip(places, corner, strict=True)
            weight = np.prod([share if side else 1 - share for (_, share), side in sides], axis=0)
            found += weight * stack[(slice(None), *index)]
        return torch.from_numpy(found[0]), torch.from_numpy(found[1:])

    return Field(loss, torch.float64, "vectorised", evaluate)


def _place(axis: Axis, coordinate: Array) -> tuple[Array, Array]:
    """The point of the grid below each coordinate, and how far it lies beyond it, in cells."""
    steps = (coordinate - axis.low) / axis.span * (len(axis.points) - 1)
    low = np.clip(np.floor(steps).astype(int), 0, len(axis.points) - 2)
    return low, np.clip(steps - low, 0.0, 1.0)
