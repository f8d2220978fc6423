"""Layers that are built and not used, and designs that only look so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

from tests.rules.in_run.pace_runs import Recorded
from unstuck.judge import judge
from unstuck.rule import find_rule

RULE = find_rule("O27")
assert RULE is not None


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 1)
        self.more = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).tanh())


class Frozen(Base):
    def __init__(self) -> None:
        super().__init__()
        self.more.requires_grad_(False)


class OnlyInEvaluation(Base):
    def forward(self, x: Tensor) -> Tensor:
        states = self.body(x).tanh()
        return self.head(states if self.training else self.more(states))


class Seldom(Base):
    """The second expert is asked for rare examples only."""

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        states = self.body(x).tanh()
        return self.head(self.more(states) if self.count % 17 == 0 else states)


class Functional(Base):
    """The layer's weights are used, and the layer itself is not called."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.linear(self.body(x).tanh(), self.more[0].weight, self.more[0].bias))


class Slow(Base):
    """A part that follows another by an average."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.more[0].weight.lerp_(self.head.weight.expand(16, 16), 0.1)
            self.more[0].bias.add_(0.01)
        return super().forward(x)


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 8, sparse=True)
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words((x[:, 0].abs() * 10).long()))


def variants(recorded: Recorded, model: nn.Module, goal: Callable[[Tensor], Tensor]) -> list[tuple[str, str]]:
    def run() -> None:
        optimizer: torch.optim.Optimizer = Adam(model.parameters(), lr=1e-2)
        if isinstance(model, Sparse):
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        for step in range(80):
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            F.mse_loss(model(x), goal(x)).backward()
            optimizer.step()
            if step % 20 == 5:
                model.eval()
                with torch.no_grad():
                    F.mse_loss(model(x), goal(x))
                model.train()

    verdict = judge(record=recorded(run), rules=[RULE])
    assert not verdict.failures
    return [(each.lead.variant, each.lead.severity.value) for each in verdict.diagnoses]


def learnable(x: Tensor) -> Tensor:
    return x[:, :1] - x[:, 1:2]


def noise(x: Tensor) -> Tensor:
    return torch.randn(len(x), 1).sign() * 3


def test_a_layer_that_is_never_called(recorded: Recorded) -> None:
    assert variants(recorded, Base(), learnable) == [("never-called", "advice")]


def test_it_is_a_warning_where_the_run_does_not_learn(recorded: Recorded) -> None:
    assert variants(recorded, Base(), noise) == [("never-called", "warning")]


@pytest.mark.parametrize("model", [Frozen, OnlyInEvaluation, Seldom, Functional, Slow, Sparse])
def test_designs_that_only_look_unused(recorded: Recorded, model: Callable[[], nn.Module]) -> None:
    assert variants(recorded, model(), learnable) == []


def test_parts_of_a_library_model_are_passed_over(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Base, "__module__", "torch.nn.modules.linear")
    assert variants(recorded, Base(), learnable) == []
