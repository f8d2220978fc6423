"""Weights that the program sets back between the steps of their optimizer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from unstuck.events import WeightsWritten

EVERY = 10


def training(width: int, dtype: torch.dtype = torch.float32, written: bool = True) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 2)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    first = [p.detach().clone() for p in model.parameters()]
    for step in range(1, 121):
        x = torch.randn(32, 6, dtype=dtype)
        optimizer.zero_grad()
        F.cross_entropy(model(x).float(), (x[:, 0] > 0).long()).backward()
        optimizer.step()
        if written and step % EVERY == 0:
            for p, before in zip(model.parameters(), first, strict=True):
                p.data.copy_(before)


@pytest.mark.parametrize("width", [8, 3000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_they_are_seen_in_models_of_any_size(recorded, width, dtype):
    *_, last = recorded(lambda: training(width, dtype)).of(WeightsWritten)
    assert last.times >= 6
    assert last.gap == EVERY
    assert last.undone == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("width", [8, 3000])
def test_an_optimizer_s_own_updates_are_not_taken_for_them(recorded, width):
    assert not list(recorded(lambda: training(width, written=False)).of(WeightsWritten))


def test_weights_that_are_replaced_are_followed_from_there_on(recorded):
    def program() -> None:
        torch.manual_seed(0)
        model = nn.Linear(6, 3000)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(40):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            if step == 20:
                model.weight.data = model.weight.data.clone()

    assert not list(recorded(program).of(WeightsWritten))
