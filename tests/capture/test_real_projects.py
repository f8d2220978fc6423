"""Patterns met in real projects, where the obvious way to watch gave a wrong statement."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from unstuck.events import Backward, Gauges, OptimizerStep, UntrainedGradients, ZeroGrad
from unstuck.judge import judge

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def test_the_loss_of_an_accumulated_step_is_the_sum_of_its_shares(recorded):
    shares: list[float] = []

    def train():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for part in X.split(2):
            loss = model(part).square().mean() / 4
            shares.append(loss.item())
            loss.backward()
        optimizer.step()

    (gauges,) = recorded(train).of(Gauges)
    assert gauges.loss == pytest.approx(sum(shares))


def test_a_wrapper_that_shares_the_groups_is_the_same_optimizer(recorded):
    class Wrapper(torch.optim.Optimizer):
        """As Lightning wraps an optimizer: another object, the same groups."""

        def __init__(self, inner):
            self.inner = inner
            self.__dict__.update({k: v for k, v in inner.__dict__.items() if k not in ("step", "__del__")})

        def step(self, closure=None):
            return self.inner.step(closure)

    def train():
        model = nn.Linear(4, 1)
        optimizer = Wrapper(torch.optim.SGD(model.parameters(), 0.1))
        for _ in range(4):
            model(X).mean().backward()
            optimizer.zero_grad()
            optimizer.step()

    record = recorded(train)
    assert {event.optimizer for event in record.of(ZeroGrad)} == {event.optimizer for event in record.of(OptimizerStep)}
    assert [diagnosis.lead.code for diagnosis in judge(record=record).diagnoses] == ["O04"]


def test_gradients_that_were_used_and_never_cleared_are_measured(recorded):
    def train():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(5):
            model(X).mean().backward()
            optimizer.step()

    first, *later = [event.carried for event in recorded(train).of(Backward)]
    assert first is None
    assert all(carried and carried > 0 for carried in later)


def test_gradients_cleared_by_hand_are_not_taken_for_carried_ones(recorded):
    def train():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(5):
            for parameter in model.parameters():
                parameter.grad = None
            model(X).mean().backward()
            optimizer.step()

    record = recorded(train)
    assert not any(event.carried for event in record.of(Backward))
    assert not judge(record=record).diagnoses


def test_a_fixed_network_in_eval_mode_is_not_missed_by_its_optimizer(recorded):
    def train():
        judge_network, model = nn.Linear(4, 2).eval(), nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(5):
            optimizer.zero_grad()
            (judge_network(model(X)) - judge_network(X).detach()).square().mean().backward()
            optimizer.step()

    record = recorded(train)
    assert not list(record.of(UntrainedGradients))
    assert not judge(record=record).diagnoses


def test_several_optimizers_have_no_common_trend(recorded):
    def train():
        one, other = nn.Linear(4, 1), nn.Linear(4, 1)
        optimizers = [torch.optim.SGD(model.parameters(), 0.01) for model in (one, other)]
        for _ in range(20):
            for model, optimizer in zip((one, other), optimizers, strict=True):
                optimizer.zero_grad()
                model(X).square().mean().backward()
                optimizer.step()

    assert judge(record=recorded(train)).trend is None


def test_processes_that_were_not_watched_are_named(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(
        "import multiprocessing\n"
        "def train(): pass\n"
        "if __name__ == '__main__':\n"
        "    workers = [multiprocessing.Process(target=train) for _ in range(2)]\n"
        "    [worker.start() for worker in workers]\n"
        "    [worker.join() for worker in workers]\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "unstuck", "run", str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "what 2 processes did that the program started" in done.stderr
