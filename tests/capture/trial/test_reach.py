"""Which targets a model can output, by its weights pushed to all sides."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from unstuck.capture.trial.model_probe import Called, Compared
from unstuck.capture.trial.relations import reach
from unstuck.findings.relations import Answer, State


class Experts(nn.Module):
    """Weighs its experts last."""

    def __init__(self) -> None:
        super().__init__()
        self.experts, self.gate = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        made = self.experts(x)
        return (made * self.gate(x).softmax(1)).sum(1, keepdim=True)


class Scaled(nn.Module):
    """A scale of its own, after an activation with limits."""

    def __init__(self, learns: bool) -> None:
        super().__init__()
        self.last = nn.Linear(4, 1)
        self.scale = nn.Parameter(torch.zeros(1)) if learns else torch.zeros(1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.last(x)) * self.scale.exp()


def reached(model: nn.Module, target: Tensor, loss: str = "mse_loss") -> Answer:
    inputs = torch.randn(len(target), 4)
    called = Called(model, (inputs,), {})
    called.outputs = [model(inputs)]
    [answer] = reach.answers([Compared(loss, called.outputs[0], target, -100, called, None, None)])
    return answer


@pytest.mark.parametrize(
    ("model", "state"),
    [
        (Experts(), State.HOLDS),
        (Scaled(learns=True), State.HOLDS),
        (Scaled(learns=False), State.BROKEN),
        (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid()), State.BROKEN),
        (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), State.HOLDS),
    ],
)
def test_a_limit_is_one_of_all_weights(model: nn.Module, state: State) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert reached(model, 5 * torch.randn(64, 1)).state is state
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_nothing_is_said_of_weights_that_were_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "SECONDS", -1.0)
    assert reached(nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()), 5 * torch.randn(64, 1)).state is State.DOES_NOT_APPLY


def test_a_few_targets_outside_are_counted() -> None:
    target = torch.zeros(100, 1)
    target[:2] = 3.0
    answer = reached(nn.Linear(4, 1), target, "binary_cross_entropy_with_logits")
    assert answer.state is State.HOLDS
    assert answer.sentence.startswith("98.00% of the targets")
