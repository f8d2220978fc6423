"""Which returns the weights of actions are, judged by the rewards."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unstuck.capture.players.moves import Move
from unstuck.capture.players.weights import fit
from unstuck.events import Weighting

REWARDS = [1.0] * 14
VARIED = [0.3, -1.0, 0.2, 2.0, 0.0, 0.5, -0.7, 1.1, 0.4, -0.2, 0.9, 0.1]


def moves(rewards: list[float], ends: tuple[int, ...] = ()) -> list[Move]:
    last = len(rewards) - 1
    return [Move(0.0, reward, at in ends or at == last, True) for at, reward in enumerate(rewards)]


def to_go(rewards: list[float], discount: float, ends: tuple[int, ...] = ()) -> Tensor:
    total, found = 0.0, []
    for at in reversed(range(len(rewards))):
        total = rewards[at] + discount * (0.0 if at in ends else total)
        found.append(total)
    return torch.tensor(found[::-1])


def normalised(values: Tensor) -> Tensor:
    return (values - values.mean()) / (values.std() + 1e-8)


@pytest.mark.parametrize("rewards", [REWARDS, VARIED])
@pytest.mark.parametrize("discount", [0.99, 0.95, 0.9])
@pytest.mark.parametrize("scaled", [True, False])
def test_rewards_to_go(rewards: list[float], discount: float, scaled: bool) -> None:
    weights = to_go(rewards, discount)
    weights = normalised(weights) if scaled else weights
    right, wrong = fit(weights / 14, moves(rewards)), fit(-weights, moves(rewards))
    assert right is not None
    assert right.weighting is Weighting.TO_GO
    assert not right.reverse
    assert wrong is not None
    assert wrong.weighting is Weighting.TO_GO
    assert wrong.reverse


@pytest.mark.parametrize("rewards", [REWARDS, VARIED])
@pytest.mark.parametrize("scaled", [True, False])
def test_against_time(rewards: list[float], scaled: bool) -> None:
    past, turned = to_go(rewards[::-1], 0.95).flip(0), to_go(rewards, 0.95).flip(0)
    for weights in (past, turned):
        found = fit(normalised(weights) if scaled else weights, moves(rewards))
        assert found is not None
        assert found.weighting in (Weighting.PAST, Weighting.REVERSED)
        assert not found.reverse


def test_returns_that_run_on() -> None:
    found = fit(to_go(VARIED, 0.95), moves(VARIED, ends=(3, 8)))
    assert found is not None
    assert found.weighting is Weighting.BEYOND
    right = fit(to_go(VARIED, 0.95, ends=(3, 8)), moves(VARIED, ends=(3, 8)))
    assert right is not None
    assert right.weighting is Weighting.TO_GO


def test_one_weight_for_the_whole_episode_says_nothing() -> None:
    assert fit(torch.full((14,), -0.5), moves(REWARDS)) is None


def test_learned_baselines_fit_nothing() -> None:
    torch.manual_seed(0)
    assert fit(to_go(VARIED, 0.95) - torch.randn(12), moves(VARIED)) is None
