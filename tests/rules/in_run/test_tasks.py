"""What a loss asks of a model: mistakes in other words than on the pages, and healthy runs that look like them."""

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

CODES = ("P08", "P12", "P23", "P24", "P26", "P27", "P28", "R16")
RULES = [rule for code in CODES if (rule := find_rule(code))]


def codes(recorded: Recorded, model: nn.Module, loss: Callable[[], Tensor]) -> list[str]:
    def run() -> None:
        optimizer = Adam(model.parameters(), lr=1e-3)
        for _ in range(12):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

    verdict = judge(record=recorded(run), rules=RULES)
    assert not verdict.failures
    return [each.lead.code for each in verdict.diagnoses]


def language_model() -> nn.Module:
    return nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))


@pytest.mark.parametrize(("ahead", "expected"), [(1, []), (2, ["P08"])])
def test_positions_are_followed_through_slices_and_masks(recorded: Recorded, ahead: int, expected: list[str]) -> None:
    model = language_model()

    def loss() -> Tensor:
        ids = torch.randint(20, (8, 16))
        scores, labels = model(ids)[:, :-ahead], ids[:, ahead:]
        kept = torch.rand(labels.shape) < 0.8
        return F.cross_entropy(scores[kept], labels[kept])

    assert codes(recorded, model, loss) == expected


def test_a_second_head_may_look_two_tokens_ahead(recorded: Recorded) -> None:
    model = language_model()

    def loss() -> Tensor:
        ids = torch.randint(20, (8, 16))
        scores = model(ids)
        near = F.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        return near + F.cross_entropy(scores[:, :-2].flatten(0, 1), ids[:, 2:].flatten())

    assert codes(recorded, model, loss) == []


def test_an_autoencoder_may_leave_out_padding(recorded: Recorded) -> None:
    model = language_model()

    def loss() -> Tensor:
        ids = torch.randint(1, 20, (16, 12)) * (torch.arange(12) < torch.randint(4, 12, (16, 1)))
        return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten(), ignore_index=0)

    assert codes(recorded, model, loss) == []


def test_ratings_that_nobody_gave_are_not_scored(recorded: Recorded) -> None:
    model = nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 20))

    def loss() -> Tensor:
        known = (torch.rand(32, 20) < 0.5).float()
        ratings = (1 + 4 * torch.rand(32, 20)) * known
        return ((model(ratings) - ratings).pow(2) * known).sum() / known.sum()

    assert codes(recorded, model, loss) == []


def test_views_of_one_class_are_pulled_together(recorded: Recorded) -> None:
    model = nn.Linear(16, 8)
    centers = torch.randn(10, 16)

    def loss() -> Tensor:
        kinds = torch.randint(10, (32,))
        x = centers[kinds] + torch.randn(32, 16)
        z = F.normalize(model(torch.cat([x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)])), dim=1)
        own = torch.eye(64, dtype=torch.bool)
        alike = (kinds.repeat(2)[:, None] == kinds.repeat(2)[None]) & ~own
        return -(z @ z.T / 0.2).masked_fill(own, -1e9).log_softmax(1)[alike].mean()

    assert codes(recorded, model, loss) == []


class Loop(nn.Module):
    """A cell whose state is passed on, in one of several ways."""

    def __init__(self, passed_on: Callable[[Tensor], Tensor], *, every_step: bool) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(4, 8), nn.Linear(8, 3)
        self.passed_on, self.every_step = passed_on, every_step

    def forward(self, x: Tensor) -> Tensor:
        h, answers = torch.zeros(len(x), 8), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], self.passed_on(h))
            answers.append(self.head(h))
        return torch.stack(answers).mean(0) if self.every_step else answers[-1]


@pytest.mark.parametrize("every_step", [False, True])
@pytest.mark.parametrize(("passed_on", "expected"), [(Tensor.detach, ["P26"]), (lambda h: h, [])])
def test_a_detached_state(
    recorded: Recorded, every_step: bool, passed_on: Callable[[Tensor], Tensor], expected: list[str]
) -> None:
    model = Loop(passed_on, every_step=every_step)
    assert (
        codes(recorded, model, lambda: F.cross_entropy(model(torch.randn(8, 6, 4)), torch.randint(3, (8,)))) == expected
    )


def test_a_forecast_may_be_given_back_to_its_model(recorded: Recorded) -> None:
    model = nn.Linear(4, 4)

    def loss() -> Tensor:
        state, total = torch.randn(8, 4), torch.zeros(())
        for _ in range(6):
            state = model(state.detach())
            total = total + F.mse_loss(state, torch.randn(8, 4))
        return total

    assert codes(recorded, model, loss) == []


class Experts(nn.Module):
    """Sends examples to an expert and puts them back."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.expert, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        h = self.embed(x)
        return self.head(torch.zeros_like(h).index_add(0, chosen, self.expert(h[chosen])))


def test_experts_put_examples_back(recorded: Recorded) -> None:
    model = Experts()

    def loss() -> Tensor:
        return F.mse_loss(model(torch.randn(64, 8), torch.randperm(64)[:40]), torch.randn(64, 1))

    assert codes(recorded, model, loss) == []
