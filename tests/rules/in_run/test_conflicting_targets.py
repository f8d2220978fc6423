"""Examples that come again with other targets, and trainings in which that is right."""

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

RULE = find_rule("R13")
assert RULE is not None
Batch = Callable[[int], tuple[Tensor, Tensor]]


def variants(recorded: Recorded, batch: Batch, width: int = 16, classes: int = 4) -> list[str]:
    model = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, classes))

    def run() -> None:
        optimizer = Adam(model.parameters(), lr=1e-2)
        for step in range(120):
            x, y = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    verdict = judge(record=recorded(run), rules=[RULE])
    assert not verdict.failures
    return [each.lead.variant for each in verdict.diagnoses]


def test_labels_that_are_shuffled_apart_from_the_inputs(recorded: Recorded) -> None:
    x = torch.randn(128, 16)
    y = x[:, :4].argmax(1)
    assert variants(recorded, lambda step: (x[torch.randperm(128)[:32]], y[torch.randperm(128)[:32]])) == ["unrelated"]


def test_labels_with_a_wrong_offset_change_from_epoch_to_epoch(recorded: Recorded) -> None:
    x = torch.randn(96, 16)
    y = x[:, :4].argmax(1)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        start = 32 * (step % 3)
        return x[start : start + 32], y.roll(7 * (step // 3))[start : start + 32]

    assert variants(recorded, batch) == ["unrelated"]


@pytest.mark.parametrize("width", [2, 8])
def test_small_or_discrete_examples_may_be_ambiguous(recorded: Recorded, width: int) -> None:
    """Tables of a few categories, states of a grid world, words: many examples are equal and differ in their label."""

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x = torch.randint(0, 2, (32, width)).float()
        return x, torch.randint(0, 4, (32,))

    assert variants(recorded, batch, width=width) == []


def test_labels_of_an_episode_are_learned(recorded: Recorded) -> None:
    """As in few-shot learning: what a class is called changes, and the input shows it."""
    x = torch.randn(64, 12)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        chosen, label = torch.randint(0, 64, (32,)), torch.randint(0, 4, (32,))
        return torch.cat([x[chosen], 5 * F.one_hot(label, 4).float()], 1), label

    assert variants(recorded, batch) == []


def test_noise_in_the_inputs_makes_each_a_new_example(recorded: Recorded) -> None:
    x = torch.randn(64, 16)
    y = x[:, :4].argmax(1)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(0, 64, (32,))
        return x[chosen] + 0.1 * torch.randn(32, 16), y[chosen]

    assert variants(recorded, batch) == []


def test_labels_that_belong_to_their_examples(recorded: Recorded) -> None:
    x = torch.randn(64, 16)
    y = torch.randint(0, 4, (64,))  # to be memorized, and each keeps its own

    def batch(step: int) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(0, 64, (32,))
        return x[chosen], y[chosen]

    assert variants(recorded, batch) == []
