"""Whether another reading of the same numbers is smoother, also under noise in every pixel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from unstuck.capture.trial.model_probe import Called
from unstuck.capture.trial.relations import layout
from unstuck.findings.relations import State

SIDE = 24


def pictures(noise: float) -> Tensor:
    """A coloured square on a coloured ground, [N, H, W, C]."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(32, 1, 1, 3, generator=generator).repeat(1, SIDE, SIDE, 1)
    images[:, 8:16, 8:16] = torch.rand(32, 1, 1, 3, generator=generator)
    return images + noise * torch.randn(images.shape, generator=generator)


def state_of(images: Tensor) -> State:
    called = Called(nn.Flatten(), (images,), {})
    return layout.answers([called])[0].state


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.15])
def test_a_view_that_should_be_a_permute(noise: float) -> None:
    images = pictures(noise)
    assert state_of(images.reshape(32, 3, SIDE, SIDE)) is State.BROKEN
    assert state_of(images.permute(0, 3, 1, 2)) is State.HOLDS


@pytest.mark.parametrize(
    "images",
    [
        torch.randn(32, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0)),
        (torch.rand(32, 3, 12, 12, generator=torch.Generator().manual_seed(0)) < 0.05).float(),
        pictures(0.1).mean(3)[:, None].repeat(1, 3, 1, 1),
    ],
    ids=["noise", "a few cells", "grey"],
)
def test_what_is_rough_in_any_reading(images: Tensor) -> None:
    assert state_of(images) is State.HOLDS
