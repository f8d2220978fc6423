"""The first NaN or infinity of a run is named, with its line; what is meant to be infinite is not."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from unstuck.capture.measure.tensors import Scalars
from unstuck.capture.observers import forwards
from unstuck.events import NonFinite

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 5)
        self.second = nn.Linear(5, 1)

    def forward(self, x):
        hidden = self.middle(self.first(x))
        return self.second(hidden)

    def middle(self, hidden):
        return torch.relu(hidden)


def train(model, *, steps=3, inputs=X, loss_of=lambda out: (out**2).mean(), rate=0.01, sabotage=None):
    optimizer = torch.optim.SGD(model.parameters(), rate)
    for step in range(steps):
        if sabotage:
            sabotage(step)
        optimizer.zero_grad()
        loss = loss_of(model(inputs))
        loss.backward()
        optimizer.step()


def only(record):
    (event,) = record.of(NonFinite)
    assert not record.notes
    return event


def line_of(function, text):
    lines, start = inspect.getsourcelines(function)
    return start + next(number for number, line in enumerate(lines) if text in line)


def test_a_healthy_run_says_nothing(recorded):
    assert not list(recorded(lambda: train(Net())).of(NonFinite))


def test_an_input_with_the_logarithm_of_zero(recorded):
    broken = X.clone().abs()
    broken[3, 1] = 0
    event = only(recorded(lambda: train(Net(), inputs=broken.log())))
    assert (event.what, event.value) == ("input", "inf")


def test_an_input(recorded):
    broken = X.clone()
    broken[3, 2] = float("nan")
    event = only(recorded(lambda: train(Net(), inputs=broken)))
    assert (event.what, event.name, event.value, event.step) == ("input", "Net", "nan", 0)
    assert event.place.line == line_of(train, "model(inputs)")
    assert event.low == pytest.approx(X.min().item(), rel=1)


def test_an_activation_is_named_with_the_line_in_forward(recorded):
    class Rooted(nn.Module):
        def forward(self, x):
            return torch.sqrt(x)

    class Wrong(Net):
        def __init__(self):
            super().__init__()
            self.root = Rooted()

        def middle(self, hidden):
            return self.root(hidden)

    event = only(recorded(lambda: train(Wrong())))
    assert (event.what, event.name, event.kind, event.value) == ("activation", "root", "Rooted", "nan")
    assert event.place.line == line_of(Wrong.middle, "self.root(")
    assert event.suspects == ("SqrtBackward0",)


def test_the_loss_and_the_operation_that_broke_it(recorded):
    event = only(recorded(lambda: train(Net(), loss_of=lambda out: torch.log(torch.relu(out)).mean())))
    assert (event.what, event.value, event.suspects) == ("loss", "inf", ("LogBackward0",))
    assert event.low == 0.0
    assert event.place.line == line_of(train, "loss.backward()")


def test_the_gradient_and_the_operation_that_broke_it(recorded):
    class Distance(Net):
        def middle(self, hidden):
            return torch.sqrt(hidden - hidden.detach())

    event = only(recorded(lambda: train(Distance())))
    assert (event.what, event.name) == ("gradient", "first.bias")
    assert event.also == ("first.weight",)
    assert event.suspects == ("SqrtBackward0",)
    assert event.place.line == line_of(train, "optimizer.step()")


def test_a_parameter_that_was_broken_from_the_start(recorded):
    model = Net()
    with torch.no_grad():
        model.first.weight[0, 0] = float("nan")
    event = only(recorded(lambda: train(model)))
    assert (event.what, event.name, event.step, event.value) == ("parameter", "first.weight", 0, "nan")
    assert event.place.line == line_of(train, "model(inputs)")


def test_a_parameter_broken_by_a_step(recorded):
    event = only(recorded(lambda: train(Net(), rate=3e38, loss_of=lambda out: (out * 1e3).sum())))
    assert (event.what, event.step) == ("parameter", 0)
    assert event.place.line == line_of(train, "optimizer.step()")


def test_infinity_on_purpose_is_not_reported(recorded):
    class Masking(nn.Module):
        def forward(self, scores):
            return scores.masked_fill(torch.eye(5, dtype=torch.bool)[:1], float("-inf"))

    class Attention(Net):
        def __init__(self):
            super().__init__()
            self.mask = Masking()

        def middle(self, hidden):
            return torch.softmax(self.mask(hidden), 1)

    assert not list(recorded(lambda: train(Attention())).of(NonFinite))


def test_large_finite_gradients_are_not_infinite(recorded):
    record = recorded(lambda: train(Net(), steps=1, rate=0.0, loss_of=lambda out: (out * 1e25).sum()))
    assert not list(record.of(NonFinite))


@pytest.mark.parametrize(("budget", "name", "until"), [(1e9, "1", ""), (0.0, "0", "2")])
def test_between_sampled_windows_the_module_or_those_around_it_are_named(recorded, monkeypatch, budget, name, until):
    class Scale(nn.Module):
        factor = 1.0

        def forward(self, x):
            return x * self.factor

    scale = Scale()
    model = nn.Sequential(nn.Linear(4, 5), scale, nn.Linear(5, 1))

    def sabotage(step):
        scale.factor = float("inf") if step == 55 else 1.0

    monkeypatch.setattr(forwards, "HOOK_BUDGET", budget)
    event = only(recorded(lambda: train(model, steps=57, sabotage=sabotage)))
    assert (event.what, event.name, event.until, event.step) == ("activation", name, until, 55)
    assert event.place is not None


def test_between_sampled_windows_a_loss(recorded):
    scale = [1.0]
    event = only(
        recorded(
            lambda: train(
                Net(),
                steps=58,
                loss_of=lambda out: torch.log((out**2).mean() * scale[0]),
                sabotage=lambda step: scale.__setitem__(0, float(step != 56)),
            )
        )
    )
    assert (event.what, event.step, event.suspects) == ("loss", 56, ("LogBackward0",))
    assert event.place is not None


def test_numbers_that_arrive_a_step_later(recorded, monkeypatch):
    """What a device other than the CPU does, played on the CPU."""
    monkeypatch.setattr(Scalars, "immediate", ())
    record = recorded(lambda: train(Net(), steps=4, loss_of=lambda out: torch.log(torch.relu(out)).mean()))
    event = only(record)
    assert (event.what, event.value, event.step) == ("loss", "inf", 0)
    plain = recorded(lambda: train(Net(), steps=4))
    monkeypatch.undo()
    same = recorded(lambda: train(Net(), steps=4))
    assert plain.losses == same.losses
    assert [type(event) for event in plain.events] == [type(event) for event in same.events]


def test_gradients_that_arrive_a_step_later(recorded, monkeypatch):
    monkeypatch.setattr(Scalars, "immediate", ())

    class Distance(Net):
        def middle(self, hidden):
            return torch.sqrt(hidden - hidden.detach())

    event = only(recorded(lambda: train(Distance(), steps=2)))
    assert (event.what, event.name, event.suspects) == ("gradient", "first.bias", ("SqrtBackward0",))


def test_between_sampled_windows_an_input(recorded):
    inputs = X.clone()

    def sabotage(step):
        inputs[0, 0] = float("nan") if step == 55 else 0.0

    event = only(recorded(lambda: train(Net(), inputs=inputs, steps=57, sabotage=sabotage)))
    assert (event.what, event.name, event.step) == ("input", "Net", 55)
    assert event.place.line == line_of(train, "model(inputs)")


def test_an_input_given_by_name(recorded):
    broken = X.clone()
    broken[3, 2] = float("nan")
    model = Net()
    event = only(recorded(lambda: model(x=broken).sum().backward()))
    assert (event.what, event.name) == ("input", "Net")


def broken_late(recorded):
    class Late(Net):
        exact = False

        def middle(self, hidden):
            return torch.sqrt(hidden - hidden.detach() + (0.0 if self.exact else 1.0))

    model = Late()

    def sabotage(step):
        model.exact = step == 55

    return only(recorded(lambda: train(model, steps=59, sabotage=sabotage)))


def test_between_sampled_windows_a_gradient(recorded, monkeypatch):
    monkeypatch.setattr("unstuck.capture.observers.steps.GLANCE_BUDGET", 1.0)
    event = broken_late(recorded)
    assert (event.what, event.name, event.step) == ("gradient", "first.bias", 55)
    assert event.suspects == ("SqrtBackward0",)


def test_between_sampled_windows_gradients_of_fast_steps_may_be_missed(recorded, monkeypatch):
    monkeypatch.setattr("unstuck.capture.observers.steps.GLANCE_BUDGET", 1e-12)
    event = broken_late(recorded)
    assert (event.what, event.step, event.gradients_unseen) == ("parameter", 55, True)
    assert {event.name, *event.also} == {"first.weight", "first.bias"}
    assert event.suspects == ("SqrtBackward0",)


class Marked(Net):
    """Holds -inf in a parameter on purpose, as a table of forbidden transitions does."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.tensor([0.0, 1.0, float("-inf")]))

    def forward(self, x):
        return super().forward(x) * torch.softmax(self.table, 0)[0]


def test_a_parameter_that_is_infinite_on_purpose(recorded):
    assert not list(recorded(lambda: train(Marked(), steps=12)).of(NonFinite))


def test_a_later_nan_is_not_blamed_on_it(recorded):
    model = Marked()

    def spoil(step):
        if step == 2:
            model.second.bias.data.fill_(float("nan"))

    event = only(recorded(lambda: train(model, sabotage=spoil)))
    assert (event.what, event.name, event.also, event.before_training) == ("parameter", "second.bias", (), False)


def test_weights_that_are_nan_before_the_first_step(recorded):
    model = Net()
    model.first.weight.data[0, 0] = float("nan")
    event = only(recorded(lambda: train(model)))
    assert (event.what, event.name, event.step, event.before_training) == ("parameter", "first.weight", 0, True)


class Rooted(nn.Module):
    def forward(self, x):
        return torch.sqrt(x)


def test_inputs_of_the_module_were_finite_or_not(recorded):
    class Function(Net):
        def middle(self, hidden):
            return torch.log(hidden)

    class Module(Net):
        def __init__(self):
            super().__init__()
            self.root = Rooted()

        def middle(self, hidden):
            return self.root(hidden)

    event = only(recorded(lambda: train(Function())))
    assert (event.what, event.name, event.inputs_finite) == ("activation", "second", False)
    event = only(recorded(lambda: train(Module())))
    assert (event.what, event.name, event.inputs_finite) == ("activation", "root", True)


def test_a_loss_after_finite_outputs_only(recorded):
    event = only(recorded(lambda: train(Net(), loss_of=lambda out: torch.log(out - 1e9).mean())))
    assert (event.what, event.inputs_finite) == ("loss", True)

    def with_a_teacher(out):
        with torch.no_grad():
            Net()(X)
        return torch.log(out - 1e9).mean()

    event = only(recorded(lambda: train(Net(), loss_of=with_a_teacher)))
    assert (event.what, event.inputs_finite) == ("loss", None)


def test_nothing_is_claimed_of_inputs_between_sampled_windows(recorded):
    class Late(Net):
        calls = 0

        def middle(self, hidden):
            self.calls += 1
            return torch.log(hidden) if self.calls > 53 else torch.relu(hidden)

    assert only(recorded(lambda: train(Late(), steps=55))).inputs_finite is None
