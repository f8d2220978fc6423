"""A field between the points of a grid that is already known, where evaluating the loss again is dear."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import torch
from torch import Tensor

from unstuck.findings.landmarks import Method
from unstuck.findings.surface import Array, Axis
from unstuck.surface.field import Field
from unstuck.surface.loss import Loss


class Between(Field):
    """Values and gradients in proportion to the nearest points of the grid."""

    def __init__(self, loss: Loss, axes: Sequence[Axis], value: Array, gradient: Array) -> None:
        super().__init__(loss, torch.float64, Method.VECTORISED, self._tensors_at)
        counts = np.array([len(axis.points) for axis in axes])
        self._low = np.array([axis.low for axis in axes])
        self._per_unit = (counts - 1) / np.array([axis.span for axis in axes])
        self._last = counts - 2
        self._strides = np.array([int(np.prod(counts[index + 1 :])) for index in range(len(axes))])
        self._corners = np.array(list(product((0, 1), repeat=len(axes))))
        self._known = np.concatenate([value[None], gradient]).reshape(1 + len(axes), -1)

    def __call__(self, points: Array) -> tuple[Array, Array]:
        """Values (n,) and gradients (d, n)."""
        steps = (points - self._low) * self._per_unit
        below = np.minimum(np.maximum(np.floor(steps).astype(int), 0), self._last)
        beyond = np.minimum(np.maximum(steps - below, 0.0), 1.0)
        found = np.zeros((len(self._known), len(points)))
        for corner in self._corners:
            share = np.where(corner, beyond, 1 - beyond).prod(axis=1)
            found += share * self._known[:, (below + corner) @ self._strides]
        return found[0], found[1:]

    def _tensors_at(self, coordinates: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        value, gradient = self(np.stack([coordinate.numpy() for coordinate in coordinates], axis=1))
        return torch.from_numpy(value), torch.from_numpy(gradient)
