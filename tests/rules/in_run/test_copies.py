"""Copies of networks that should follow the one that learns, and copies that are meant to stay."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam

from tests.rules.in_run.pace_runs import Recorded
from unstuck.judge import judge
from unstuck.rule import find_rule

RULE = find_rule("P17")
assert RULE is not None


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def variants(recorded: Recorded, run: Callable[[], None]) -> list[str]:
    verdict = judge(record=recorded(run), rules=[RULE])
    assert not verdict.failures
    return [each.lead.variant for each in verdict.diagnoses]


def student(follow: Callable[[nn.Module, nn.Module, int], None], teacher_of: Callable[[nn.Module], nn.Module]) -> None:
    """Two noisy views of each example: the teacher gives the goal for one of them."""
    model = net()
    teacher = teacher_of(model)
    optimizer = Adam(model.parameters(), lr=1e-2)
    for step in range(60):
        x = torch.randn(16, 8)
        with torch.no_grad():
            goal = teacher(x + 0.1 * torch.randn(16, 8))
        optimizer.zero_grad()
        (F.mse_loss(model(x + 0.1 * torch.randn(16, 8)), goal) + model(x).mean().square()).backward()
        optimizer.step()
        follow(teacher, model, step)


def stay(teacher: nn.Module, model: nn.Module, step: int) -> None:
    pass


def average(teacher: nn.Module, model: nn.Module, step: int) -> None:
    for slow, fast in zip(teacher.parameters(), model.parameters(), strict=True):
        slow.data.lerp_(fast.data, 0.05)


def seldom(teacher: nn.Module, model: nn.Module, step: int) -> None:
    if step == 40:
        teacher.load_state_dict(model.state_dict())


def test_an_average_that_is_never_updated(recorded: Recorded) -> None:
    assert variants(recorded, lambda: student(stay, copy.deepcopy)) == ["never-changes"]


def test_an_average_and_a_target_that_follow(recorded: Recorded) -> None:
    assert variants(recorded, lambda: student(average, copy.deepcopy)) == []


def test_a_target_that_follows_seldom(recorded: Recorded) -> None:
    assert variants(recorded, lambda: student(seldom, copy.deepcopy)) == []


def test_a_network_of_another_shape_is_not_a_copy(recorded: Recorded) -> None:
    assert variants(recorded, lambda: student(stay, lambda model: nn.Linear(8, 8))) == []


def test_a_teacher_from_a_checkpoint_may_stay(recorded: Recorded) -> None:
    def loaded(model: nn.Module) -> nn.Module:
        teacher = net()
        teacher.load_state_dict(net().state_dict())
        return teacher

    assert variants(recorded, lambda: student(stay, loaded)) == []


def test_a_target_that_is_the_model_itself(recorded: Recorded) -> None:
    def follow(teacher: nn.Module, model: nn.Module, step: int) -> None:
        if step % 10 == 9:
            teacher.load_state_dict(model.state_dict())

    assert variants(recorded, lambda: student(follow, lambda model: model)) == ["own-weights"]


def test_best_weights_that_were_copied(recorded: Recorded) -> None:
    def run() -> None:
        model = net()
        optimizer = Adam(model.parameters(), lr=1e-2)
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()
            best = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(best)

    assert variants(recorded, run) == []
