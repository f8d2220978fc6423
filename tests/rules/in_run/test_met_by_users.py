"""What newcomers met and the rules had missed or told wrongly."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from tests.rules.in_run.pace_runs import Recorded
from unstuck.judge import judge
from unstuck.record import Record
from unstuck.source.reader.project import parse


def codes(record: Record) -> list[str]:
    return [diagnosis.lead.code for diagnosis in judge(record=record).diagnoses]


def gan(fake_for_generator: Callable[[torch.Tensor], torch.Tensor]) -> None:
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    critic = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for _ in range(20):
        real, fake = torch.randn(32, 2) + 2, generator(torch.randn(32, 4))
        of_critic.zero_grad()
        loss = F.binary_cross_entropy_with_logits(critic(real), torch.ones(32, 1))
        (loss + F.binary_cross_entropy_with_logits(critic(fake.detach()), torch.zeros(32, 1))).backward()
        of_critic.step()
        of_generator.zero_grad()
        F.binary_cross_entropy_with_logits(critic(fake_for_generator(fake)), torch.ones(32, 1)).backward()
        of_generator.step()


def test_an_optimizer_that_no_gradient_ever_reaches(recorded: Recorded):
    assert codes(recorded(lambda: gan(torch.Tensor.detach)))[0] == "O03"


def test_the_generator_of_a_healthy_gan_is_reached(recorded: Recorded):
    assert "O03" not in codes(recorded(lambda: gan(lambda fake: fake)))


def reconstruct(target: torch.Tensor) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(20):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(model(target), target).backward()
        optimizer.step()


def test_binary_cross_entropy_with_targets_that_are_no_probabilities(recorded: Recorded):
    assert codes(recorded(lambda: reconstruct(2 * torch.rand(32, 8) - 1)))[0] == "O13"


def test_soft_targets_are_fine(recorded: Recorded):
    assert "O13" not in codes(recorded(lambda: reconstruct(torch.rand(32, 8))))


def test_units_that_are_nan_are_not_dead(recorded: Recorded):
    def train() -> None:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(60):
            x = torch.randn(32, 8)
            x[0, 0] = float("nan") if step == 5 else 0.0
            optimizer.zero_grad()
            F.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            optimizer.step()

    found = codes(recorded(train))
    assert "G10" in found
    assert "O25" not in found


def test_reading_a_script_shows_no_warning_of_the_program_again():
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for _ in range(3):
            warnings.warn("said once", stacklevel=1)
            parse("x = '\\n'\n", "train.py")
    assert len(shown) == 1


def test_a_script_with_an_odd_escape_is_read_in_silence():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse("x = '\\d'\ny = [0for z in ()]\n", "train.py")
