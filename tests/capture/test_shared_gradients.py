"""Whose gradients and losses a window counts, when there are several optimizers, attacks or interruptions."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from unstuck.events import Backward, Clip, Forward

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def clear(model):
    for parameter in model.parameters():
        parameter.grad = None


@pytest.mark.parametrize("clears", [True, False])
def test_each_half_of_a_gan_clears_its_own(recorded, clears):
    def train():
        torch.manual_seed(0)
        one, two = nn.Linear(4, 4), nn.Linear(4, 1)
        first, second = (torch.optim.SGD(model.parameters(), 0.01) for model in (one, two))
        for _ in range(6):
            if clears:
                clear(two)
            two(one(X).detach()).square().mean().backward()
            second.step()
            if clears:
                clear(one)
            (two(one(X)) - 1).square().mean().backward()
            first.step()

    carried = [event.carried for event in recorded(train).of(Backward)]
    assert carried[:2] == [None, None]
    assert all(bool(value) is not clears for value in carried[3:])


def test_gradients_faded_on_purpose_are_no_pile(recorded):
    def train():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(5):
            model(X).mean().backward()
            optimizer.step()
            for parameter in model.parameters():
                parameter.grad.mul_(0.1)

    assert not any(event.carried for event in recorded(train).of(Backward))


def test_the_loss_leaves_out_backwards_that_were_cleared_away(recorded):
    values = []

    def train():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(3):
            for _ in range(4):
                (model(X) ** 2).mean().backward()
            optimizer.zero_grad()
            for _ in range(2):
                loss = (model(X) ** 2).mean() / 2
                loss.backward()
            values.append(2 * loss.item())
            optimizer.step()

    assert [loss for _, loss in recorded(train).losses] == pytest.approx(values)


@pytest.mark.parametrize(
    "given", [itertools.chain, iter, lambda parameters: map(torch.Tensor.requires_grad_, parameters)]
)
def test_any_iterator_is_noted_as_it_passes(recorded, given):
    def train():
        model = nn.Linear(4, 1)
        model(X).mean().backward()
        nn.utils.clip_grad_norm_(given(list(model.parameters())), 1.0)

    (clip,) = recorded(train).of(Clip)
    assert (clip.with_grad, clip.parameters, clip.target) == (2, 2, "Linear")


def test_what_cannot_be_noted_is_unknown(recorded):
    def train():
        model = nn.Linear(4, 1)
        model(X).mean().backward()
        nn.utils.clip_grad_norm_(dict(model.named_parameters()).values(), 1.0)

    (clip,) = recorded(train).of(Clip)
    assert (clip.with_grad, clip.parameters, clip.target) == (None, None, None)


def test_an_interrupt_inside_forward_does_not_blind_the_watch(recorded):
    class Stopping(nn.Linear):
        stop = True

        def forward(self, x):
            if self.stop:
                self.stop = False
                raise KeyboardInterrupt
            return super().forward(x)

    def train():
        model = Stopping(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for other in (model, nn.Sequential(Stopping(4, 4))):
            with pytest.raises(KeyboardInterrupt):
                other(X)
        for _ in range(3):
            model(X).mean().backward()
            optimizer.step()

    record = recorded(train)
    assert [event.model for event in record.of(Forward)][-2:] == ["Stopping", "Stopping"]
