"""Gradients as plain tensors: their norms, also across the shards of FSDP2, and one multiplication for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

Bucket: TypeAlias = tuple[list[int], list[Tensor]]
NARROW = (torch.float16, torch.bfloat16)


class Gradients:
    """The gradients that one optimizer step is about to use."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.grad is not None]

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The memory behind each gradient."""
        return [plain_tensor(parameter) for parameter in self.parameters]

    @cached_property
    def buckets(self) -> list[Bucket]:
        """Tensors of one device and type, with their positions, as the foreach kernels want them."""
        found: dict[tuple[torch.device, torch.dtype], Bucket] = {}
        for index, tensor in enumerate(self.tensors):
            indices, tensors = found.setdefault((tensor.device, tensor.dtype), ([], []))
            indices.append(index)
            tensors.append(tensor)
        return list(found.values())

    def norms(self) -> Tensor:
        """The norm of every gradient, in one vector, in at least single precision."""
        norms: list[Any] = [None] * len(self.tensors)
        for indices, tensors in self.buckets:
            wide = torch.float32 if tensors[0].dtype in NARROW else None
            for index, norm in zip(indices, torch._foreach_norm(tensors, 2, dtype=wide), strict=True):
                norms[index] = norm
        if len(self.buckets) > 1:
            kind = torch.float64 if any(norm.dtype == torch.float64 for norm in norms) else torch.float32
            norms = [norm.to(norms[0].device, kind) for norm in norms]
        return self._across_shards(torch.stack(norms))

    def _across_shards(self, norms: Tensor) -> Tensor:
        """A shard knows its own part only: one small all-reduce per mesh makes the norms true."""
        for group, indices in sharded(self.parameters).items():
            squares = norms[indices] ** 2
            torch.distributed.all_reduce(squares, group=group)
            norms[indices] = squares.sqrt()
        return norms

    def multiply(self, factor: float | Tensor) -> None:
        """Scale everything by one number, or each gradient by its own."""
        if isinstance(factor, Tensor) and factor.dim():
            for tensor, own in zip(self.tensors, factor.unbind(), strict=True):
                tensor.mul_(own.to(tensor.device))
            return
        if not isinstance(factor, Tensor) and factor == 1:
            return
        for _, tensors in self.buckets:
            own_factor = factor.to(tensors[0].device) if isinstance(factor, Tensor) else factor
            torch._foreach_mul_(tensors, own_factor)

    def clamp(self, limit: float) -> None:
        """Clip every element on its own."""
        for _, tensors in self.buckets:
            torch._foreach_clamp_min_(tensors, -limit)
            torch._foreach_clamp_max_(tensors, limit)


def plain_tensor(parameter: Tensor) -> Tensor:
    """The memory behind a gradient: the local shard, the values of a sparse one, complex numbers as pairs."""
    gradient = parameter.grad
    assert gradient is not None
    if type(gradient) is not Tensor and hasattr(gradient, "to_local"):
        gradient = gradient.to_local()
    if gradient.layout is torch.sparse_coo:
        gradient = parameter.grad = gradient.coalesce()  # rows that occur twice count once
        gradient = gradient._values()
    return torch.view_as_real(gradient) if gradient.is_complex() else gradient


def sharded(parameters: Sequence[Tensor]) -> dict[Any, list[int]]:
    """The process groups over which gradients are sharded, and which gradients those are."""
    found: dict[Any, list[int]] = {}
    for index, parameter in enumerate(parameters):
        if type(parameter.grad) is Tensor:
            continue
        for dimension, placement in enumerate(getattr(parameter.grad, "placements", ())):
            if placement.is_shard():
                mesh = parameter.grad.device_mesh  # type: ignore[union-attr]
                found.setdefault(mesh.get_group(dimension), []).append(index)
    return found
