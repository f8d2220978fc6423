"""Small trainings, for tests of the rules about order and pace."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from unstuck.record import Record

CODES = "O04 O08 O09 O23 O24 R07 G01 G02 G03 G06 G11 G12 G13 G14".split()
Recorded = Callable[..., Record]
Codes = Callable[..., set[str]]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def error(model: nn.Module, size: int = 16) -> Tensor:
    x = torch.randn(size, 8)
    return F.mse_loss(model(x), x.sum(1, keepdim=True))


def steps(model: nn.Module, optimizer: Optimizer, count: int, behind: Callable[[int], object] = lambda step: None):
    for step in range(count):
        optimizer.zero_grad()
        error(model).backward()
        optimizer.step()
        behind(step)
