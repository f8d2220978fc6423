"""Losses that need not fall, since the model has a hand in its own targets, are no sign of harm; others are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.rules.in_run.pace_runs import Recorded
from unstuck.judge import judge


def q_learning() -> None:
    """Values grow with what is learned of the future, and the error with them."""
    online, target = (nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)) for _ in range(2))
    optimizer = torch.optim.Adam(online.parameters(), 1e-2)
    for step in range(200):
        state, action = torch.randn(32, 4), torch.randint(0, 2, (32, 1))
        with torch.no_grad():
            goal = 1 + 0.99 * target(torch.randn(32, 4)).max(1).values * (1 + step / 100)
        loss = F.mse_loss(online(state).gather(1, action).squeeze(1), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            target.load_state_dict(online.state_dict())


def actor_and_critic() -> None:
    """Long episodes have large losses and large gradients, and come in a row once the policy is good."""
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for episode in range(120):
        length = 200 if episode % 40 > 36 else 4
        output = model(torch.randn(length, 4))
        choice, value = torch.distributions.Categorical(logits=output[:, :2]), output[:, 2]
        returns = torch.arange(length, 0, -1) / 4.0
        policy = -(choice.log_prob(choice.sample()) * (returns - value.detach())).sum() / 8
        loss = (F.smooth_l1_loss(value, returns, reduction="sum") if length > 4 else 0.0) + policy - 0.3
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("training", [q_learning, actor_and_critic])
def test_a_loss_whose_goal_moves_is_not_called_rising(recorded: Recorded, training: Callable[[], None]):
    verdict = judge(record=recorded(training))
    assert verdict.trend is not None
    assert verdict.trend.word in ("moving", "too short")
    assert not {diagnosis.lead.code for diagnosis in verdict.diagnoses} & {
        "G05",
        "G07",
        "G08",
        "M14",
        "O22",
        "O25",
        "O26",
    }


@pytest.mark.parametrize("validated", [False, True], ids=["", "evaluated after every step"])
def test_a_loss_that_a_high_rate_drives_up_is_still_called_so(recorded: Recorded, validated: bool):
    def training() -> None:
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=3.0)
        for _ in range(80):
            x = torch.randn(32, 8)
            optimizer.zero_grad()
            F.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            optimizer.step()
            if validated:
                with torch.no_grad():
                    F.mse_loss(model(x), x.sum(1, keepdim=True))

    verdict = judge(record=recorded(training))
    assert "M14" in {diagnosis.lead.code for diagnosis in verdict.diagnoses}
