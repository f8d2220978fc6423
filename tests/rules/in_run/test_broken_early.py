"""Runs that break within their first steps, or look well though a part of them is dead: the cause is still named."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer

from tests.rules.in_run.pace_runs import Recorded
from unstuck.findings.run_summary import parameters_without_gradient
from unstuck.judge import judge
from unstuck.record import Record


def codes(record: Record) -> list[str]:
    return [diagnosis.lead.code for diagnosis in judge(record=record).diagnoses]


def data(count: int = 64) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 8)
    return inputs, inputs.sum(1, keepdim=True)


def train(model: nn.Module, optimizer: Optimizer, steps: int, *, clear: bool = True, micro: int = 1) -> None:
    for _ in range(steps):
        if clear:
            optimizer.zero_grad()
        for _ in range(micro):
            inputs, target = data()
            F.mse_loss(model(inputs), target).backward()
        optimizer.step()


def test_gradients_that_pile_up_until_nothing_is_finite(recorded: Recorded) -> None:
    def training() -> None:
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
        train(model, SGD(model.parameters(), lr=0.1), 80, clear=False)

    found = codes(recorded(training))
    assert found[0] == "O04"
    assert "G10" in found


def test_a_first_step_so_large_that_the_next_is_not_finite(recorded: Recorded) -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8, bias=False)
            nn.init.normal_(self.layer.weight, std=0.5)

        def forward(self, inputs: Tensor) -> Tensor:
            for _ in range(24):
                inputs = self.layer(inputs)
            return inputs[:, :1]

    def training() -> None:
        model = Deep()
        train(model, SGD(model.parameters(), lr=0.1), 30)

    found = codes(recorded(training))
    assert found[0] == "G08"
    assert "G10" in found


def test_losses_that_are_summed_until_nothing_is_finite(recorded: Recorded) -> None:
    def training() -> None:
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
        train(model, SGD(model.parameters(), lr=0.3), 40, micro=16)

    assert "O09" in codes(recorded(training))


class Guarded(nn.Module):
    def __init__(self, bias: float) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 1)
        nn.init.constant_(self.first.bias, bias)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(F.relu(self.first(inputs)))


def test_a_layer_that_lets_nothing_through_though_the_loss_falls(recorded: Recorded) -> None:
    def training(bias: float) -> None:
        model = Guarded(bias)
        optimizer = Adam(model.parameters(), lr=0.05)
        for _ in range(120):
            optimizer.zero_grad()
            inputs, target = data()
            F.mse_loss(model(inputs), target + 20.0).backward()
            optimizer.step()

    assert "O25" in codes(recorded(lambda: training(-30.0)))


def test_parameters_that_no_gradient_came_to_are_told(recorded: Recorded) -> None:
    class Cut(Guarded):
        def forward(self, inputs: Tensor) -> Tensor:
            with torch.no_grad():
                states = F.relu(self.first(inputs))
            return self.last(states)

    def training() -> None:
        model = Cut(0.0)
        train(model, Adam(model.parameters(), lr=0.01), 30)

    (sentence,) = parameters_without_gradient(recorded(training))
    assert sentence.startswith("2 of the 4 parameters of Adam never had a gradient: ")
    assert "first.weight" in sentence
