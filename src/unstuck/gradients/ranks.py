"""Data-parallel training: when gradients are exchanged, and sums over all ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unstuck.gradients.errors import MisuseError


class Ranks:
    """The data-parallel modules of a model: DistributedDataParallel, or FSDP2 (`fully_shard`), or none."""

    def __init__(self, model: nn.Module) -> None:
        modules = [*model.modules()] if torch.distributed.is_available() and torch.distributed.is_initialized() else []
        self.replicated = [module for module in modules if isinstance(module, nn.parallel.DistributedDataParallel)]
        self.sharded = _instances(modules, "torch.distributed.fsdp", "FSDPModule")
        if _instances(modules, "torch.distributed.fsdp", "FullyShardedDataParallel"):
            raise MisuseError(
                "GradientManager works with FSDP2: use fully_shard(model) instead of FullyShardedDataParallel."
            )
        self.group = self.replicated[0].process_group if self.replicated else None
        self.exchange = bool(self.replicated or self.sharded)
        """Are gradients exchanged, be it with nobody?"""
        self.count = torch.distributed.get_world_size(self.group) if self.exchange else 1

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Forward and backward in here leave the gradients on their rank."""
        with ExitStack() as stack:
            for module in self.replicated:
                stack.enter_context(module.no_sync())
            for module in self.sharded:
                module.set_requires_gradient_sync(False, recurse=False)
                stack.callback(module.set_requires_gradient_sync, True, recurse=False)
            yield

    def sum(self, value: float | Tensor) -> Tensor:
        """The sum of a number over all ranks."""
        device = value.device if isinstance(value, Tensor) else self._device()
        total = (
            torch.as_tensor(value, device=device).detach().to(torch.float64 if device.type == "cpu" else torch.float32)
        )
        total = total.clone()
        if self.count > 1:
            torch.distributed.all_reduce(total, group=self.group)
        return total

    def _device(self) -> torch.device:
        modules = self.replicated or self.sharded
        return next(modules[0].parameters()).device if modules else torch.device("cpu")


def _instances(modules: list[nn.Module], home: str, name: str) -> list[Any]:
    """Modules of a class whose home nobody imported cannot exist: asking so saves importing it."""
    kind = getattr(sys.modules.get(home), name, None)
    return [module for module in modules if kind is not None and isinstance(module, kind)]
