"""Accumulation and clipping: what only looks guilty stays silent, variants are found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer, lr_scheduler

import unstuck
from tests.rules.in_run.pace_runs import Codes, Recorded, error, net
from unstuck.events import Clip, OptimizerStep


def test_gradients_of_single_examples_that_are_put_aside_are_not_lost(found: Codes):
    def private():
        model = net()
        optimizer = SGD(model.parameters(), lr=0.01)
        for _ in range(12):
            kept = [torch.zeros_like(p) for p in model.parameters()]
            for _ in range(4):
                optimizer.zero_grad()
                (error(model, 1) / 4).backward()
                for total, parameter in zip(kept, model.parameters(), strict=True):
                    total += parameter.grad.clamp(-0.05, 0.05)
            for total, parameter in zip(kept, model.parameters(), strict=True):
                parameter.grad = total
            optimizer.step()

    assert found(private) == set()


def test_two_passes_of_sharpness_aware_training(found: Codes):
    def sharpness_aware():
        model = net()
        optimizer = SGD(model.parameters(), lr=0.01)
        for _ in range(20):
            x = torch.randn(16, 8)
            F.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            optimizer.zero_grad()
            F.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert found(sharpness_aware) == set()


def test_losses_of_several_tasks_are_meant_to_be_added(found: Codes):
    def tasks():
        heads = [nn.Linear(8, 1), nn.Linear(8, 2), nn.Linear(8, 3)]
        optimizer = SGD([p for head in heads for p in head.parameters()], lr=0.01)
        for _ in range(20):
            optimizer.zero_grad()
            for head in heads:
                x = torch.randn(16, 8)
                F.mse_loss(head(x), x[:, : head.out_features]).backward()
            optimizer.step()

    assert found(tasks) == set()


@pytest.mark.parametrize("clip", [None, 0.1])
def test_our_own_manager_divides_clips_and_schedules(recorded: Recorded, found: Codes, clip: float | None):
    def managed():
        model = net()
        optimizer = SGD(model.parameters(), lr=0.01)
        scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=15)
        manager = unstuck.GradientManager(model, optimizer, accumulate=4, clip=clip, scheduler=scheduler)
        for _ in range(3):
            for x in manager.batches(list(torch.randn(20, 16, 8))):
                manager.backward(F.mse_loss(model(x), x.sum(1, keepdim=True)))
                manager.step()

    assert found(managed) == set()


def test_the_clipping_of_our_own_manager_is_on_record(recorded: Recorded):
    def managed():
        model = net()
        manager = unstuck.GradientManager(model, SGD(model.parameters(), lr=0.01), clip=0.5)
        for _ in range(5):
            manager.backward(error(model))
            manager.step()

    record = recorded(managed)
    clips = list(record.of(Clip))
    assert [clip.limit for clip in clips] == [0.5] * 5
    assert all(clip.norm > 0.5 and clip.with_grad == 4 for clip in clips if clip.norm is not None)
    used = [step.grad_norm for step in record.of(OptimizerStep)]
    assert used == pytest.approx([0.5] * 5, rel=1e-4)


def accumulate(
    loss_of: Callable[[nn.Module], Tensor], window: int = 4, kind: type[Optimizer] = SGD, batches: int = 48
) -> Callable[[], None]:
    def run():
        model = net()
        optimizer = kind(model.parameters(), lr=0.001)
        for step in range(batches):
            loss_of(model).backward()
            if (step + 1) % window == 0:
                optimizer.step()
                optimizer.zero_grad()

    return run


def test_a_loss_of_two_terms_that_is_not_divided(found: Codes):
    assert found(accumulate(lambda model: error(model) + F.l1_loss(model(torch.ones(4, 8)), torch.ones(4, 1)))) == {
        "O09"
    }


def test_terms_with_weights_cannot_be_told_from_a_division(found: Codes):
    assert found(accumulate(lambda model: 0.3 * error(model) + 0.7 * error(model))) == set()


def test_half_of_a_loss_is_a_habit(found: Codes):
    assert found(accumulate(lambda model: 0.5 * error(model) / 4)) == set()


def test_a_sum_that_is_divided_by_its_own_number(found: Codes):
    def summed(model: nn.Module) -> Tensor:
        x = torch.randn(16, 8)
        return F.mse_loss(model(x), x.sum(1, keepdim=True), reduction="sum") / 64

    assert found(accumulate(summed)) == set()


def test_short_last_batches_are_not_unequal_batches(found: Codes):
    sizes = iter(([16] * 11 + [3]) * 4)
    assert found(accumulate(lambda model: error(model, next(sizes)) / 4)) == set()


def test_clipping_that_only_measures_the_norm_may_stand_anywhere(found: Codes):
    def measured(model: nn.Module) -> Tensor:
        nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        return error(model) / 4

    assert found(accumulate(measured)) == set()


def test_zero_grad_inside_a_window_under_a_scaler(found: Codes):
    def wasted():
        model, scaler = net(), torch.amp.GradScaler("cpu")
        optimizer = SGD(model.parameters(), lr=0.01)
        for step in range(40):
            optimizer.zero_grad()
            scaler.scale(error(model) / 4).backward()
            if (step + 1) % 4 == 0:
                scaler.step(optimizer)
                scaler.update()

    assert found(wasted) == {"G11"}


def test_windows_that_end_with_the_epoch_leave_nothing_over(found: Codes):
    def whole():
        model = net()
        optimizer = SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            for i in range(10):
                (error(model) / 4).backward()
                if (i + 1) % 4 == 0 or i == 9:
                    optimizer.step()
                    optimizer.zero_grad()

    assert found(whole) == set()


def test_a_closure_is_evaluated_many_times(found: Codes):
    def closures():
        model = net()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)
        x = torch.randn(64, 8)

        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
            loss.backward()
            return loss

        for _ in range(10):
            optimizer.step(closure)

    assert found(closures) == set()


def test_the_two_halves_of_a_gan(found: Codes):
    def adversaries():
        maker, critic = nn.Linear(8, 8), net()
        first, second = Adam(maker.parameters(), lr=1e-3), Adam(critic.parameters(), lr=1e-3)
        ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
        for _ in range(20):
            made = maker(torch.randn(16, 8))
            second.zero_grad()
            F.binary_cross_entropy_with_logits(critic(torch.randn(16, 8)), ones).backward()
            F.binary_cross_entropy_with_logits(critic(made.detach()), zeros).backward()
            second.step()
            first.zero_grad()
            F.binary_cross_entropy_with_logits(critic(made), ones).backward()
            first.step()

    assert found(adversaries) == set()


@pytest.mark.parametrize(("limit", "codes"), [(100.0, set()), (0.001, {"G06"})])
def test_clipping_by_value_is_judged_by_how_far_it_turns(found: Codes, limit: float, codes: set[str]):
    def clipped():
        model = net()
        optimizer = SGD(model.parameters(), lr=0.01)
        for _ in range(20):
            optimizer.zero_grad()
            error(model).backward()
            nn.utils.clip_grad_value_(model.parameters(), limit)
            optimizer.step()

    assert found(clipped) == codes
