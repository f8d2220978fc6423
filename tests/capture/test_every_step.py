"""Gauges of every step, and the steps between recorded windows: nothing is lost, doubled or kept alive."""

from __future__ import annotations

import contextlib
import gc
import itertools
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import optimizer as optimizers

import unstuck
from unstuck.capture import window as windows
from unstuck.events import Gauges, OptimizerStep, TensorGauges
from unstuck.record import Record, read

X = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))


class Watched:
    """What a watch has recorded of `step`, called so many times; `before` is told the number of each."""

    def __init__(self, step, steps: int, every: int | None = 1, before=lambda number: None) -> None:
        with unstuck.watch(print=False, every=every) as w:
            for number in range(steps):
                before(number)
                step()
        self.steps = w.steps
        self.findings = [diagnosis.lead.code for diagnosis in w.findings]
        self.record: Record = read(w.record)

    def steps_of(self, kind: type) -> list[int]:
        """When such events were told."""
        return [event.step for event in self.record.of(kind)]


def training(model: nn.Module, given: torch.Tensor = X, optimizer: torch.optim.Optimizer | None = None, **options):
    """One step of an ordinary training."""
    kind = torch.optim.SGD(model.parameters(), 1e-3, **options) if optimizer is None else optimizer

    def step() -> None:
        kind.zero_grad()
        model(given).square().mean().backward()
        kind.step()

    return step


def deep() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def test_a_sparse_gradient_of_another_shape_does_not_cost_a_step():
    table = nn.Embedding(100, 64, sparse=True)
    words = torch.arange(64)
    watched = Watched(training(table, words), 60)
    assert (watched.steps, watched.findings) == (60, [])
    norm = float(torch.sparse.sum(table.weight.grad.coalesce() ** 2)) ** 0.5
    assert list(watched.record.of(TensorGauges))[-1].grad_norm[0] == pytest.approx(norm, rel=0.01)


def test_a_model_that_runs_another_part_later_is_still_measured():
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 2)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return (self.one if self.calls == 1 else self.two)(self.body(x))

    watched = Watched(training(Heads()), 150)
    assert watched.steps_of(TensorGauges) == list(range(150))
    assert all(event.grad_norm is not None for event in watched.record.of(Gauges))


@pytest.mark.parametrize("every", [None, 1])
def test_models_that_take_turns_are_told_in_the_order_of_their_steps(every):
    one, two = training(deep()), training(deep())
    watched = Watched(lambda: (one(), two()), 120, every)
    steps = watched.steps_of(Gauges)
    assert watched.steps == 240
    assert steps == sorted(steps)
    assert len(steps) == 240 or every is None


def test_a_model_that_is_compiled_between_recorded_windows_is_followed_on(monkeypatch):
    monkeypatch.setattr("unstuck.capture.window.BUDGET", 1e9)  # a busy machine records no fewer windows
    model = deep()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    called = [model]

    def step() -> None:
        optimizer.zero_grad()
        called[0](X).square().mean().backward()
        optimizer.step()

    def before(number: int) -> None:
        if number == 65:
            called[0] = torch.compile(model, backend="eager")

    watched = Watched(step, 200, None, before)
    assert watched.steps == 200
    assert max(watched.steps_of(OptimizerStep)) > 100
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def test_an_optimizer_that_a_hook_of_the_users_builds_between_recorded_windows():
    model = deep()
    built: list[torch.optim.Optimizer] = []

    def build(*_: object) -> None:
        if len(built) < 70:
            built.append(torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1))

    handle = optimizers.register_optimizer_step_pre_hook(build)
    try:
        assert Watched(training(model), 90, None).steps == 90
    finally:
        handle.remove()


def test_steps_that_raise_leave_room_for_the_others():
    model = nn.ParameterList([nn.Parameter(torch.randn(64, 64)) for _ in range(140)])
    fails = [False]

    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            if fails[0]:
                raise RuntimeError("not now")
            return super().step(closure)

    optimizer = Failing(model.parameters(), 1e-3)

    def step() -> None:
        optimizer.zero_grad()
        torch.stack([parameter.square().mean() for parameter in model]).mean().backward()
        with contextlib.suppress(RuntimeError):
            optimizer.step()

    def before(number: int) -> None:
        fails[0] = number in (3, 4, 5, 6, 7)

    assert len(Watched(step, 20, 1, before).steps_of(TensorGauges)) == 15


@pytest.mark.parametrize("how", ["loaded", "in place"])
def test_weights_that_are_changed_between_two_steps_are_no_update(how):
    model = nn.Linear(4, 2, bias=False)

    def before(number: int) -> None:
        if number == 115 and how == "loaded":
            model.load_state_dict({"weight": torch.full((2, 4), 5.0)})
        elif number == 115:
            with torch.no_grad():
                model.weight.fill_(5.0)

    watched = Watched(training(model), 120, 1, before)
    ratios = [event.update_ratio[0] for event in watched.record.of(TensorGauges)]
    assert len(ratios) >= 119  # how far the step after it went may not be known
    assert max(ratios) < 0.1


def test_one_weight_without_a_gradient_does_not_hide_the_change_of_another():
    weights = [nn.Parameter(torch.ones(4)) for _ in range(2)]
    optimizer = torch.optim.SGD(weights, 1e-4)
    used = list(weights)

    def step() -> None:
        optimizer.zero_grad()
        torch.stack([weight.square().sum() for weight in used]).sum().backward()
        optimizer.step()

    def before(number: int) -> None:
        used[:] = weights[number == 73 :]
        if number == 73:
            with torch.no_grad():
                weights[1].mul_(0.5)

    watched = Watched(step, 100, 1, before)
    ratios = [event.update_ratio for event in watched.record.of(TensorGauges)]
    assert max(ratio or 0.0 for both in ratios for ratio in both) < 0.01


@pytest.mark.parametrize("kind", ["heads in turn", "complex", "empty"])
def test_no_step_is_missing(kind, monkeypatch):
    monkeypatch.setattr(windows, "BUDGET", 10.0)  # recorded windows again and again
    odd = {"complex": torch.ones(3, dtype=torch.complex64), "empty": torch.ones(0)}.get(kind, torch.ones(3))
    first, second = nn.Parameter(torch.ones(3)), nn.Parameter(odd)
    optimizer = torch.optim.SGD([first, second], 1e-3)
    turn = itertools.cycle([first, second])

    def step() -> None:
        optimizer.zero_grad()
        used = [next(turn)] if kind == "heads in turn" else [first, second]
        sum(weight.abs().square().sum() for weight in used).backward()
        optimizer.step()

    watched = Watched(step, 200)
    assert watched.steps_of(TensorGauges) == list(range(200))


def test_the_program_may_swap_its_parameters():
    """Torch refuses to where somebody else holds a view of them."""
    model = nn.Linear(100, 100)
    swap = torch.__future__.set_swap_module_params_on_conversion

    def before(number: int) -> None:
        if number == 73:
            model.zero_grad()
            swap(True)
            try:
                model.double().float()
            finally:
                swap(False)

    assert Watched(training(model, torch.ones(2, 100)), 80, 1, before).steps == 80


def test_a_weight_whose_last_rows_alone_learn():
    model = nn.Linear(2048, 20, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 2048))[:, 12:].square().mean().backward()
        optimizer.step()

    gauges = next(iter(Watched(step, 1).record.of(TensorGauges)))
    assert gauges.grad_zero[0] == pytest.approx(0.6, abs=0.1)
    assert gauges.update_ratio[0] > 0


def test_weights_that_are_clipped_after_every_step_are_measured_around_each():
    """As a WGAN does: where the weights change between the steps too, a step is more than what it leaves."""
    model = nn.Linear(4, 2, bias=False)

    def before(number: int) -> None:
        with torch.no_grad():
            model.weight.clamp_(-0.01, 0.01)

    watched = Watched(training(model), 200, 1, before)
    assert watched.steps_of(TensorGauges) == list(range(200))


def test_a_weight_that_is_cut_in_place_of_itself():
    weight = nn.Parameter(torch.ones(8, 4))
    optimizer = torch.optim.SGD([weight], 0.0)

    def step() -> None:
        optimizer.zero_grad()
        (weight * 2).sum().backward()
        optimizer.step()

    def before(number: int) -> None:
        if number == 73:
            weight.grad = None
            weight.data = weight.data[:2]

    watched = Watched(step, 100, 1, before)
    for event in watched.record.of(TensorGauges):
        assert event.weight_norm[0] == pytest.approx((8 if event.step >= 73 else 32) ** 0.5, rel=1e-3), event.step


def test_a_proxy_in_a_module_of_the_users_is_not_asked(monkeypatch):
    class Proxy:
        @property
        def __class__(self):
            raise RuntimeError("working outside of the request")

    monkeypatch.setattr(__import__("sys").modules[__name__], "current", Proxy(), raising=False)
    assert Watched(training(deep()), 5).steps == 5


def test_series_are_complete_while_it_goes_on():
    step = training(deep())
    with unstuck.watch(print=False, every=1) as w:
        for _ in range(99):
            step()
        assert len(w.series("loss")) == 99


def test_replaced_weights_are_let_go_at_the_end():
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    step = training(model, torch.randn(2, 64), optimizer)
    with unstuck.watch(print=False, every=1):
        for _ in range(60):
            step()
    storage = weakref.ref(model.weight.untyped_storage())
    model.double()
    gc.collect()
    assert storage() is None


def test_the_loss_of_a_failed_backward_does_not_count():
    model = deep()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def step() -> None:
        optimizer.zero_grad()
        F.mse_loss(model(X), torch.ones(16, 2)).backward()
        loss = model(X).square().mean()
        loss.backward()
        with pytest.raises(RuntimeError):
            loss.backward()
        optimizer.step()

    watched = Watched(step, 3)
    assert all(event.loss < 3 for event in watched.record.of(Gauges))
