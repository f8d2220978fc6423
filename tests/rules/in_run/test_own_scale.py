"""Rules judge a run by its own scale: large targets do not excuse a rate, and a bad start does not blame a good run."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer

from tests.rules.in_run.pace_runs import Recorded
from unstuck.judge import judge
from unstuck.rule import find_rule


def regression(model: nn.Module, optimizer: Optimizer, scale: float, steps: int = 60) -> None:
    for _ in range(steps):
        x = torch.randn(32, 8)
        optimizer.zero_grad()
        F.mse_loss(model(x), scale * (x[:, :1] - x[:, 1:2])).backward()
        optimizer.step()


def test_a_rate_that_is_too_high_for_large_targets(recorded: Recorded) -> None:
    """The first gradient is above 100, as large as the targets make it: it is the rate that does not suit them."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    rule = find_rule("M14")
    assert rule is not None
    verdict = judge(record=recorded(lambda: regression(model, SGD(model.parameters(), lr=0.05), 150.0)), rules=[rule])
    assert [each.lead.code for each in verdict.diagnoses] == ["M14"]


def test_a_bad_start_is_advice_where_the_run_learns(recorded: Recorded) -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    rule = find_rule("R01")
    assert rule is not None

    def run() -> None:
        with torch.no_grad():
            model[2].weight.mul_(20)
        optimizer = Adam(model.parameters(), lr=1e-2)
        for _ in range(200):
            x = torch.randn(64, 8)
            optimizer.zero_grad()
            F.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
            optimizer.step()

    (diagnosis,) = judge(record=recorded(run), rules=[rule]).diagnoses
    assert diagnosis.lead.severity.value == "advice"
