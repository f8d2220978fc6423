"""Which stretches of a run are recorded, and that every stretch is bounded."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import torch
from torch import nn

from unstuck.capture.window import EVENTS_PER_WINDOW, LONGEST_ACCUMULATION, Window
from unstuck.events import Backward, Forward, Gauges, LossesBetween, OptimizerStep, UntrainedGradients, ZeroGrad

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def windows_sampled_by(window: Window, windows: int, seconds: Callable[[bool], float]) -> list[int]:
    """End windows by steps, where a window takes as long as `seconds(sampled)` says."""
    sampled = []
    with mock.patch("unstuck.capture.window.perf_counter", return_value=0.0) as now:
        for number in range(windows):
            if window.sampled:
                sampled.append(number)
            now.return_value += seconds(window.sampled)
            window.step_taken()
    return sampled


def test_windows_are_dense_then_sparse():
    sampled = windows_sampled_by(Window(), 1500, lambda _: 1.0)
    assert sampled[:50] == list(range(50))
    assert sampled[50:52] == [50, 60]
    assert sampled[-4:] == [1100, 1200, 1300, 1400]


def test_optimizers_that_take_turns_are_all_sampled():
    window = Window()
    window.take_turns(2)
    late = [number for number in windows_sampled_by(window, 30_000, lambda _: 1.0) if number >= 20_000]
    assert {number % 2 for number in late} == {0, 1}
    assert len(late) < 200


def test_costly_windows_are_recorded_more_rarely():
    sampled = windows_sampled_by(Window(), 20_000, lambda sampled: 2.0 if sampled else 1.0)
    late = [window for window in sampled if window > 100]
    assert 2 < len(late) <= 0.011 * 20_000
    assert windows_sampled_by(Window(every=3), 10, lambda sampled: 9.0 if sampled else 1.0) == [0, 3, 6, 9]


def test_a_sampled_window_is_whole(recorded):
    def train():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for _ in range(75):
            optimizer.zero_grad()
            model(X).mean().backward()
            optimizer.step()

    record = recorded(train)
    wanted = [*range(51), 60, 70]
    for kind in (ZeroGrad, Forward, Backward, OptimizerStep, Gauges):
        assert [event.step for event in record.of(kind)] == wanted, kind
    assert record.ended
    assert record.ended.steps == 75


def test_a_run_without_step_is_recorded_and_bounded(recorded):
    def train():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for _ in range(300):
            optimizer.zero_grad()
            model(X).mean().backward()

    record = recorded(train)
    backwards = list(record.of(Backward))
    assert LONGEST_ACCUMULATION <= len(backwards) < 200
    assert not list(record.of(OptimizerStep))
    assert [index for index, _ in record.losses] == list(range(len(record.losses)))
    assert len(record.losses) > 50


def test_an_evaluation_inside_a_window_is_bounded(recorded):
    def train():
        model = nn.Linear(4, 1)
        with torch.no_grad():
            for _ in range(1000):
                model(X)

    assert len(list(recorded(train).of(Forward))) == EVENTS_PER_WINDOW


class Listed(nn.Module):
    """Keeps a layer where torch does not find it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.hidden = [nn.Linear(4, 4)]

    def forward(self, x):
        return self.hidden[0](self.first(x))


def train_with(model, parameters, by_hand=lambda: None, steps=6):
    optimizer = torch.optim.SGD(parameters, 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(X) ** 2).mean().backward()
        by_hand()
        optimizer.step()


def test_parameters_without_an_optimizer(recorded):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    (event,) = recorded(lambda: train_with(model, model[0].parameters())).of(UntrainedGradients)
    assert [parameter.name for parameter in event.parameters] == ["1.weight", "1.bias"]
    assert all(norm > 0 for norm in event.norms)
    assert event.step == 1


def test_layers_in_a_plain_list(recorded):
    model = Listed()
    (event,) = recorded(lambda: train_with(model, model.parameters())).of(UntrainedGradients)
    assert [parameter.name for parameter in event.parameters] == ["Linear.weight", "Linear.bias"]
    assert event.place
    assert event.place.function.endswith("Listed.forward")


def test_parameters_moved_by_hand_are_not_reported(recorded):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    def with_data():
        for parameter in model[1].parameters():
            parameter.data -= 0.1 * parameter.grad

    def with_no_grad():
        with torch.no_grad():
            for parameter in model[1].parameters():
                parameter -= 0.1 * parameter.grad

    for by_hand in (with_data, with_no_grad):
        record = recorded(lambda by_hand=by_hand: train_with(model, model[0].parameters(), by_hand))
        assert not list(record.of(UntrainedGradients))


def test_frozen_and_second_optimizers_are_not_reported(recorded):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    model[1].requires_grad_(False)
    second = torch.optim.SGD(model[2].parameters(), 0.01)
    record = recorded(lambda: train_with(model, model[0].parameters(), second.step))
    assert not list(record.of(UntrainedGradients))


def test_layers_built_inside_forward(recorded):
    class Building(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)

        def forward(self, x):
            return nn.Linear(4, 1)(self.first(x))

    model = Building()
    (event,) = recorded(lambda: train_with(model, model.parameters())).of(UntrainedGradients)
    assert [parameter.name for parameter in event.parameters] == ["Linear.weight", "Linear.bias"]
    assert event.place
    assert event.place.function.endswith("Building.forward")


def test_a_replaced_layer_is_not_taken_for_one_built_inside_forward(recorded):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    def train():
        train_with(model, model.parameters(), steps=2)
        model[1] = nn.Linear(4, 1)
        train_with(model, model.parameters(), steps=2)

    assert not list(recorded(train).of(UntrainedGradients))


def test_registered_and_unregistered_parameters_are_told_apart(recorded):
    model = nn.Sequential(nn.Linear(4, 4), Listed())
    plain, listed = recorded(lambda: train_with(model, model[0].parameters())).of(UntrainedGradients)
    assert [parameter.name for parameter in plain.parameters] == ["1.first.weight", "1.first.bias"]
    assert plain.place is None
    assert [parameter.name for parameter in listed.parameters] == ["Linear.weight", "Linear.bias"]
    assert listed.place is not None


def test_the_start_of_every_training_is_recorded_closely_and_nine_cost_little_more_than_one():
    def sampled(trainings: int, windows: int) -> list[int]:
        window, found = Window(), []
        for number in range(trainings * windows):
            if number % windows == 0:
                window.begin_training()
            if window.sampled:
                found.append(number)
            window.step_taken()
        return found

    two = sampled(2, 500)
    assert set(range(500, 515)) <= set(two)
    assert 516 not in two
    assert len(sampled(9, 500)) < len(sampled(1, 4500)) + 100
    assert len(sampled(3000, 2)) < 700  # an optimizer for each task


def losses_of(*optimizers, order):
    """Train as many models, whose optimizers step in this order."""
    models = [nn.Linear(4, 1) for _ in optimizers]
    made = [kind(model.parameters(), 1e-3) for kind, model in zip(optimizers, models, strict=True)]
    for which in order:
        made[which].zero_grad()
        models[which](X).pow(2).mean().backward()
        made[which].step()


def test_optimizers_one_after_the_other_do_not_take_turns(recorded):
    kinds = (torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop)
    record = recorded(lambda: losses_of(*kinds, order=[0] * 90 + [1] * 90 + [2] * 90))
    steps = [event.step for event in record.of(OptimizerStep)]
    assert {*range(50), *range(90, 105), *range(180, 190)} <= set(steps)
    assert len(steps) < 100  # how many of the others depends on how long each takes
    between = {event.optimizer for event in record.of(LossesBetween)}
    assert between == {"SGD", "Adam", "RMSprop"}


def test_optimizers_that_take_turns_each_have_their_losses(recorded):
    record = recorded(lambda: losses_of(torch.optim.SGD, torch.optim.Adam, order=[0, 1] * 250))
    seen = [(event.optimizer, event.step) for event in record.of(Gauges) if event.loss is not None]
    seen += [(event.optimizer, step) for event in record.of(LossesBetween) for step in event.steps]
    assert sorted(seen, key=lambda pair: pair[1]) == [(("SGD", "Adam")[step % 2], step) for step in range(500)]
