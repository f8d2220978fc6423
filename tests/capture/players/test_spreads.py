"""Which way the parts of a likelihood push a spread that is learned, however it is written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unstuck.capture.guard import Guard
from unstuck.capture.places import Places
from unstuck.capture.players.spreads import Spreads
from unstuck.capture.window import Watch
from unstuck.events import Event, SpreadSeen

Loss = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def log_variance(mean: Tensor, raw: Tensor, y: Tensor, sign: float) -> Tensor:
    return (0.5 * torch.exp(-raw) * (y - mean) ** 2 + sign * 0.5 * raw).mean()


def divided(mean: Tensor, raw: Tensor, y: Tensor, sign: float) -> Tensor:
    return 0.5 * ((mean - y).pow(2) / raw.exp() + sign * raw).sum(-1).mean()


def softplus(mean: Tensor, raw: Tensor, y: Tensor, sign: float) -> Tensor:
    sigma = F.softplus(raw) + 1e-3
    z = (y - mean) / sigma
    return -(-0.5 * z**2 - sign * torch.log(sigma) - 0.5 * math.log(2 * math.pi)).sum(1).mean()


def laplace(mean: Tensor, raw: Tensor, y: Tensor, sign: float) -> Tensor:
    return ((y - mean).abs() / raw.exp() + sign * raw).mean()


def written_out(mean: Tensor, raw: Tensor, y: Tensor, sign: float) -> Tensor:
    var = raw.exp() ** 2
    error = y - mean
    return (error * error / (2 * var) + sign * 0.5 * torch.log(2 * math.pi * var)).mean()


def mixture(mean: Tensor, raw: Tensor, y: Tensor, sign: float) -> Tensor:
    sigma = raw.exp().clamp_min(1e-4)
    z = (y - mean) / sigma
    return -torch.logsumexp(-math.log(3) - 0.5 * z**2 - sign * sigma.log(), dim=-1).mean()


def seen(loss: Tensor) -> list[SpreadSeen]:
    found: list[Event] = []
    watch = Watch(found.append, Guard(lambda *_: None), Places())
    Spreads(watch).backward(loss.grad_fn, None)
    return [event for event in found if isinstance(event, SpreadSeen)]


def outputs(kind: str) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x, y = torch.randn(20, 5), torch.randn(20, 3)
    if kind == "chunk":
        mean, raw = nn.Linear(5, 6)(x).chunk(2, dim=-1)
        return mean, raw, y
    if kind == "slice":
        out: Any = nn.Linear(5, 6)(x)
        return out[:, :3], out[:, 3:], y
    return nn.Linear(5, 3)(x), nn.Linear(5, 3)(x), y


@pytest.mark.parametrize("kind", ["heads", "chunk", "slice"])
@pytest.mark.parametrize("loss", [log_variance, divided, softplus, laplace, written_out, mixture])
def test_signs(loss: Loss, kind: str) -> None:
    mean, raw, y = outputs(kind)
    (right,) = seen(loss(mean, raw, y, 1.0))
    (wrong,) = seen(loss(mean, raw, y, -1.0))
    assert right.together == 0.0
    assert wrong.together == 1.0


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_weight_for_each_task(sign: float) -> None:
    mean, _, y = outputs("heads")
    weight = nn.Parameter(torch.zeros(()))
    (event,) = seen(torch.exp(-weight) * F.mse_loss(mean, y) + sign * weight)
    assert event.shared
    assert event.together == (0.0 if sign > 0 else 1.0)


def test_nothing_else_depends_on_it() -> None:
    mean, raw, y = outputs("heads")
    (event,) = seen((torch.exp(-raw) * (y - mean) ** 2).mean())
    assert event.alone


def test_weights_of_both_signs_and_plain_losses() -> None:
    mean, raw, y = outputs("heads")
    advantages = torch.randn(20, 1)
    assert seen(((0.5 * torch.exp(-raw) * (y - mean) ** 2 + 0.5 * raw) * advantages).mean()) == []
    assert seen(F.mse_loss(mean, y) + raw.exp().mean()) == []
    assert seen(((y - mean) ** 2 * torch.softmax(raw, -1)).mean()) == []
