"""Loops without an optimizer: updates by hand are steps, and their losses are followed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad_and_value

from unstuck.events import Gauges, HandStep
from unstuck.record.outcome import Achieved, outcome_of

STEPS = 120


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(32, 6)
    return x, (x[:, 0] > x[:, 1]).long()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))


def by_data() -> None:
    model = network()
    for _ in range(STEPS):
        x, y = batch()
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.data -= 0.3 * p.grad


def by_grad() -> None:
    model = network()
    weights = list(model.parameters())
    for _ in range(STEPS):
        x, y = batch()
        gradients = torch.autograd.grad(F.cross_entropy(model(x), y), weights)
        with torch.no_grad():
            for p, g in zip(weights, gradients, strict=True):
                p -= 0.3 * g


def by_new_tensors() -> None:
    model = network()
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    for _ in range(STEPS):
        x, y = batch()
        gradients = torch.autograd.grad(F.cross_entropy(functional_call(model, weights, (x,)), y), weights.values())
        pairs = zip(weights.items(), gradients, strict=True)
        weights = {name: (p - 0.3 * g).detach().requires_grad_() for (name, p), g in pairs}


def by_transform() -> None:
    model = network()
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    step = grad_and_value(lambda w, x, y: F.cross_entropy(functional_call(model, w, (x,)), y))
    for _ in range(STEPS):
        gradients, _ = step(weights, *batch())
        weights = {name: p - 0.3 * gradients[name] for name, p in weights.items()}


@pytest.mark.parametrize("program", [by_data, by_grad, by_new_tensors, by_transform])
def test_each_update_is_a_step_whose_rate_is_inferred(recorded, program):
    record = recorded(program)
    assert record.ended is not None
    assert record.ended.steps == STEPS
    found = outcome_of(record)
    assert found is not None
    assert found.word is Achieved.LEARNS
    assert found.steps >= STEPS - 1
    assert {gauges.optimizer for gauges in record.of(Gauges)} == {"updates by hand"}
    steps = [event for event in record.of(HandStep) if event.along is not None]
    assert len(steps) > 30
    assert all(event.along == pytest.approx(1, abs=1e-3) for event in steps)
    assert all(event.rate == pytest.approx(0.3, rel=1e-2) for event in steps)


def test_what_is_climbed_by_hand_learns_if_it_rises(recorded):
    def program() -> None:
        torch.manual_seed(0)
        w, b = torch.zeros(6, 2, requires_grad=True), torch.zeros(2, requires_grad=True)
        for _ in range(STEPS):
            x, y = batch()
            likelihood = (x @ w + b).log_softmax(1)[torch.arange(32), y].mean()
            likelihood.backward()
            with torch.no_grad():
                for p in (w, b):
                    p += 0.5 * p.grad
                    p.grad = None

    found = outcome_of(recorded(program))
    assert found is not None
    assert found.word is Achieved.LEARNS
    assert found.first is not None
    assert found.last is not None
    assert found.first < found.last < 0


def test_an_optimizer_keeps_its_steps_to_itself(recorded):
    def program() -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(20):
            x, y = batch()
            torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    record = recorded(program)
    assert record.ended is not None
    assert record.ended.steps == 20
    assert not any(record.of(HandStep))


def test_an_attack_on_the_input_is_not_a_training(recorded):
    def program() -> None:
        model = network()
        x, y = batch()
        for _ in range(10):
            x = x.detach().requires_grad_()
            (g,) = torch.autograd.grad(F.cross_entropy(model(x), y), x)
            x = x + 0.1 * g.sign()

    record = recorded(program)
    assert record.ended is not None
    assert record.ended.steps == 0
