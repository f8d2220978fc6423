"""The gradient scaler and schedules: what only looks guilty stays silent, variants are found."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer, lr_scheduler
from torch.utils.data import DataLoader, Dataset

import unstuck
from tests.rules.in_run.pace_runs import Codes, Recorded, error, net, steps
from unstuck.events import ScalerUpdate, ScheduleEnded
from unstuck.rule import find_rule

# The gradient scaler


@pytest.mark.parametrize("enabled", [True, False])
def test_a_scaler_that_is_switched_off_scales_nothing(found: Codes, enabled: bool):
    def switched():
        model, scaler = net(), torch.amp.GradScaler("cpu", enabled=enabled)
        optimizer = SGD(model.parameters(), lr=0.01)
        for _ in range(12):
            optimizer.zero_grad()
            scaler.scale(error(model)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    assert found(switched) == ({"G03"} if enabled else set())


def test_scaled_gradients_of_one_of_two_optimizers(found: Codes):
    def two(unscaled: bool = False):
        scaler = torch.amp.GradScaler("cpu")
        models = [net(), net()]
        optimizers = [SGD(model.parameters(), lr=0.01) for model in models]
        for _ in range(12):
            for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
                optimizer.zero_grad()
                scaler.scale(error(model)).backward()
                if number or unscaled:
                    scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
            scaler.update()

    assert found(two) == {"G03"}


def test_gradients_unscaled_by_hand_may_be_applied(found: Codes):
    def by_hand():
        model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=256.0)
        optimizer = SGD(model.parameters(), lr=0.01)
        for _ in range(12):
            optimizer.zero_grad()
            scaler.scale(error(model)).backward()
            for parameter in model.parameters():
                parameter.grad /= scaler.get_scale()
            optimizer.step()

    assert found(by_hand) == set()


def scaled(factor: Callable[[int], float], count: int) -> Callable[[], None]:
    """Training under a scaler, where the loss of a step is multiplied so that float16 overflows or does not."""

    def run():
        model, scaler = net(), torch.amp.GradScaler("cpu")
        optimizer = SGD(model.parameters(), lr=1e-3)
        for step in range(count):
            optimizer.zero_grad()
            x = torch.randn(16, 8)
            half = model(x).half().float()
            scaler.scale(F.mse_loss(half, x.sum(1, keepdim=True)) * factor(step)).backward()
            scaler.step(optimizer)
            scaler.update()

    return run


def test_a_scaler_may_look_for_its_scale_at_first(recorded: Recorded):
    record = recorded(scaled(lambda step: 200.0, 60))
    rule = find_rule("O24")
    assert rule is not None
    assert rule.run is not None
    last = list(record.of(ScalerUpdate))[-1]
    assert last.skipped >= 5
    assert list(rule.run(record)) == []


def test_a_scaler_that_goes_on_losing_steps(found: Codes):
    assert "O24" in found(scaled(lambda step: 1e30 if step % 4 == 0 else 1e-6, 80))


def test_skipped_steps_between_sampled_windows_are_counted(recorded: Recorded):
    record = recorded(scaled(lambda step: 1e30 if step > 60 else 1e-6, 121))
    assert list(record.of(ScalerUpdate))[-1].skipped >= 32


# Schedules


def scheduled(
    build: Callable[[Optimizer], object], count: int, per_epoch: int = 1, rate: float = 0.01
) -> Callable[[], None]:
    """Training in which the scheduler is stepped behind every `per_epoch` optimizer steps."""

    def run():
        model = net()
        optimizer = SGD(model.parameters(), lr=rate)
        scheduler = build(optimizer)
        steps(model, optimizer, count, lambda step: scheduler.step() if (step + 1) % per_epoch == 0 else None)

    return run


@pytest.mark.parametrize(
    "training",
    [
        scheduled(lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=60), 60),
        scheduled(lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=6), 60, 10),
        scheduled(lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=100), 30, 10),
        scheduled(lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=10), 60),
        scheduled(lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.02, total_steps=60), 60),
        scheduled(lambda o: lr_scheduler.LambdaLR(o, lambda step: min(1.0, step / 20)), 60),
        scheduled(lambda o: lr_scheduler.LambdaLR(o, lambda step: 1.0), 60),
        scheduled(lambda o: lr_scheduler.StepLR(o, step_size=1000), 60),
        scheduled(lambda o: lr_scheduler.StepLR(o, step_size=30, gamma=0.1), 90),
        scheduled(lambda o: lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=5), 60),
        scheduled(lambda o: lr_scheduler.PolynomialLR(o, total_iters=60, power=0.9), 60),
        scheduled(lambda o: lr_scheduler.MultiStepLR(o, [40, 50, 55], gamma=0.1), 60),
        scheduled(lambda o: lr_scheduler.StepLR(o, step_size=1), 60, 37),
    ],
    ids=lambda _: "schedule",
)
def test_schedules_as_they_should_be(found: Codes, training: Callable[[], None]):
    assert found(training) == set()


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Data of a class of the user's, whose length only the program itself asks for."""

    def __init__(self, count: int) -> None:
        self.rows = torch.randn(count, 8)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.rows[index], self.rows[index].sum(0, keepdim=True)


def in_epochs(
    build: Callable[[Optimizer], lr_scheduler.LRScheduler], epochs: int, per_batch: bool, batches: int = 60
) -> Callable[[], None]:
    """Epochs over a loader, with the scheduler stepped behind every batch or every epoch."""

    def run():
        model, loader = net(), DataLoader(Rows(batches * 8), batch_size=8, shuffle=True)
        optimizer = SGD(model.parameters(), lr=0.01)
        scheduler = build(optimizer)
        for _ in range(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                if per_batch:
                    scheduler.step()
            if not per_batch:
                scheduler.step()

    return run


DECAYS = [
    lambda o: lr_scheduler.ExponentialLR(o, gamma=0.8),
    lambda o: lr_scheduler.StepLR(o, step_size=2, gamma=0.1),
]


@pytest.mark.parametrize("build", DECAYS, ids=["exponential", "steps"])
def test_a_decay_of_epochs_that_is_over_in_the_first_one(found: Codes, build: Callable[[Optimizer], object]):
    assert found(in_epochs(build, 4, per_batch=True)) == {"O08", "R07"}


@pytest.mark.parametrize("build", DECAYS, ids=["exponential", "steps"])
def test_a_decay_of_epochs_stepped_once_per_epoch(found: Codes, build: Callable[[Optimizer], object]):
    assert found(in_epochs(build, 4, per_batch=False)) == set()


@pytest.mark.parametrize(("gamma", "epochs"), [(0.99, 3), (0.97, 1)])
def test_a_decay_made_for_batches(found: Codes, gamma: float, epochs: int):
    build = partial(lr_scheduler.ExponentialLR, gamma=gamma)
    assert "O08" not in found(in_epochs(build, epochs, per_batch=True))


def test_schedules_inside_others_are_not_neglected(found: Codes):
    def build(optimizer: Optimizer):
        warm_up = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=10)
        rest = lr_scheduler.CosineAnnealingLR(optimizer, T_max=500)
        return lr_scheduler.SequentialLR(optimizer, [warm_up, rest], milestones=[100])

    assert found(scheduled(build, 60)) == set()


def test_warm_up_per_step_beside_a_schedule_per_epoch(found: Codes):
    def both():
        model = net()
        optimizer = SGD(model.parameters(), lr=0.01)
        warm_up = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=10)
        main = lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
        for _ in range(4):
            steps(model, optimizer, 12, lambda step: warm_up.step())
            main.step()

    assert found(both) == set()


def test_a_stopped_run_says_nothing_about_lengths(found: Codes):
    def stopped():
        scheduled(lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=60), 40, 20)()
        raise KeyboardInterrupt

    assert found(stopped, stopped=True) == set()


def test_a_schedule_that_is_stepped_at_the_top_of_each_epoch(found: Codes):
    def early():
        model = net()
        optimizer = SGD(model.parameters(), lr=0.01)
        scheduler = lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
        for _ in range(4):
            scheduler.step()
            steps(model, optimizer, 8)

    assert found(early) == {"O08"}


def test_a_schedule_that_is_brought_to_where_a_checkpoint_left_it(found: Codes):
    def resumed():
        model = net()
        optimizer = SGD(model.parameters(), lr=0.01)
        scheduler = lr_scheduler.StepLR(optimizer, step_size=20, gamma=0.5)
        for _ in range(5):
            scheduler.step()
        steps(model, optimizer, 30, lambda step: scheduler.step())

    assert found(resumed) == set()


def test_a_step_that_the_scaler_left_out_is_no_step_too_early(found: Codes):
    def calibrated():
        model, scaler = net(), torch.amp.GradScaler("cpu")
        optimizer = SGD(model.parameters(), lr=1e-3)
        scheduler = lr_scheduler.ExponentialLR(optimizer, 0.99)
        for _ in range(30):
            optimizer.zero_grad()
            x = torch.randn(16, 8)
            scaler.scale(F.mse_loss(model(x).half().float(), x.sum(1, keepdim=True))).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()

    assert found(calibrated) == set()


def test_a_rate_that_the_program_sets_over_the_schedule(found: Codes):
    def overwritten():
        model = net()
        optimizer = SGD(model.parameters(), lr=0.01)
        scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)

        def behind(step: int):
            scheduler.step()
            optimizer.param_groups[0]["lr"] = 0.01

        steps(model, optimizer, 30, behind)

    assert found(overwritten) == {"O23"}


def test_a_schedule_that_moves_after_the_last_step_looked_at(found: Codes):
    def late():
        model = net()
        optimizer = SGD(model.parameters(), lr=0.01)
        scheduler = lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        steps(model, optimizer, 58, lambda step: scheduler.step() if step in (52, 54, 56) else None)

    assert found(late) == set()


def test_a_rate_that_dies_without_any_scheduler(found: Codes):
    def dying():
        model = net()
        optimizer = SGD(model.parameters(), lr=0.01)
        steps(model, optimizer, 60, lambda step: optimizer.param_groups[0].update(lr=0.01 * 0.5**step))

    assert found(dying) == {"R07"}


def test_a_rate_lowered_because_the_loss_stalled_is_no_cause(found: Codes):
    def stalled():
        model = net()
        optimizer = SGD(model.parameters(), lr=0.01)
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.1)
        steps(model, optimizer, 60, lambda step: scheduler.step(1.0))

    assert found(stalled) == set()


def test_how_far_a_schedule_came_is_told_at_the_end(recorded: Recorded):
    record = recorded(scheduled(lambda o: lr_scheduler.StepLR(o, step_size=1), 130, 7))
    (ended,) = record.of(ScheduleEnded)
    assert (ended.count, ended.steps) == (18, 130)


def test_nothing_is_left_on_schedulers(recorded: Recorded):
    kept: list[lr_scheduler.LRScheduler] = []

    def build(optimizer: Optimizer) -> lr_scheduler.LRScheduler:
        kept.append(lr_scheduler.StepLR(optimizer, 3))
        return kept[0]

    before = set(vars(lr_scheduler.StepLR(SGD(net().parameters(), lr=0.01), 3)))
    recorded(scheduled(build, 12))
    assert set(vars(kept[0])) == before
    assert not hasattr(lr_scheduler.StepLR.get_lr, "__original_fn")
    assert not hasattr(unstuck.GradientManager._clip, "__original_fn")
