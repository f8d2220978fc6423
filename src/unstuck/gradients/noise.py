"""Gaussian noise on the gradients: the same on every replica, and without touching the program's random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from unstuck.gradients.measure import Gradients

Noise: TypeAlias = float | Callable[[int], float]


def add_noise(gradients: Gradients, noise: Noise, seed: int, step: int) -> None:
    """Add noise of the given standard deviation, or of the one it has at this step."""
    deviation = noise(step) if callable(noise) else noise
    if deviation < 0:
        raise ValueError(f"The standard deviation of the gradient noise must be at least 0, and is {deviation}.")
    if deviation == 0:
        return
    generators: dict[tuple[torch.device, int], torch.Generator] = {}
    for parameter, tensor in zip(gradients.parameters, gradients.tensors, strict=True):
        key = tensor.device, _shard(parameter)
        if key not in generators:
            generators[key] = torch.Generator(tensor.device).manual_seed(hash((seed, step, key[1])) & 0x7FFF_FFFF)
        drawn = torch.randn(tensor.shape, generator=generators[key], device=tensor.device, dtype=tensor.dtype)
        tensor.add_(drawn, alpha=deviation)


def _shard(parameter: Tensor) -> int:
    """Replicas draw the same noise, shards of one parameter must not."""
    place = 0
    for dimension, placement in enumerate(getattr(parameter.grad, "placements", ())):
        if placement.is_shard():
            place = place * 1009 + 1 + parameter.grad.device_mesh.get_local_rank(dimension)  # type: ignore[union-attr]
    return place
