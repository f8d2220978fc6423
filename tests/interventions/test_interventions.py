"""Remedies from outside: each does what it says in the loops it meets, and nothing to the rest of the script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler

from unstuck.interventions import (
    AddParameters,
    ClearGradients,
    ClipGradients,
    DefaultWeights,
    DivideLoss,
    GiveLoss,
    Intervention,
    KeepGradients,
    NoClipping,
    NoSchedule,
    SetOption,
    SetRate,
    TakeSteps,
    TrainingMode,
    UnscaleBeforeClip,
    UseAdam,
    intervene,
)

OVERFLOWS = 2.0**127
"""A scale at which gradients are infinite at first, as they are in half precision."""


@contextmanager
def under(*changes: Intervention) -> Iterator[None]:
    lab = intervene(changes)
    try:
        yield
    finally:
        lab.undo()


class Loop:
    """A regression that a correct loop solves in 40 steps."""

    def __init__(self, lr: float = 0.1) -> None:
        torch.manual_seed(0)
        self.inputs = torch.randn(64, 4)
        self.targets = self.inputs.sum(1, keepdim=True)
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)

    def loss(self) -> torch.Tensor:
        return F.mse_loss(self.model(self.inputs), self.targets)


def test_gradients_wiped_before_the_step_are_kept() -> None:
    with under(KeepGradients()):
        loop = Loop()
        for clear in (loop.optimizer.zero_grad, loop.model.zero_grad) * 20:
            loss = loop.loss()
            loss.backward()
            clear()
            loop.optimizer.step()
    assert float(loss.detach()) < 1e-2


def test_a_closure_may_clear_its_gradients() -> None:
    def trained(*changes: Intervention) -> float:
        with under(*changes):
            loop = Loop()
            optimizer = torch.optim.LBFGS(loop.model.parameters())

            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss = loop.loss()
                loss.backward()
                return loss

            return float([optimizer.step(closure).detach() for _ in range(3)][-1])

    assert trained(KeepGradients()) == trained()


@pytest.mark.parametrize("change", [KeepGradients(), ClearGradients()])
def test_a_step_that_the_scaler_leaves_out_leaves_no_infinite_gradients_behind(change: Intervention) -> None:
    with under(change):
        loop = Loop()
        scaler = torch.amp.GradScaler("cpu", init_scale=OVERFLOWS)
        for _ in range(40):
            loss = loop.loss()
            scaler.scale(loss).backward()
            if isinstance(change, KeepGradients):
                loop.optimizer.zero_grad()
            scaler.step(loop.optimizer)
            scaler.update()
    assert float(loss.detach()) < 0.1


def test_gradients_that_pile_up_are_cleared_after_the_steps_of_a_window() -> None:
    with under(ClearGradients()):
        loop = Loop()
        for number in range(80):
            loss = loop.loss()
            (loss / 2).backward()
            if number % 2:
                loop.optimizer.step()
    assert float(loss.detach()) < 1e-2


def test_a_loop_without_steps_takes_them() -> None:
    with under(TakeSteps()):
        loop = Loop()
        for _ in range(40):
            loss = loop.loss()
            loss.backward()
    assert float(loss.detach()) < 1e-2


@pytest.mark.parametrize("unscales_later", [True, False])
def test_gradients_are_unscaled_before_they_are_clipped(unscales_later: bool) -> None:
    with under(UnscaleBeforeClip()):
        loop = Loop()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        for _ in range(60):
            loop.optimizer.zero_grad()
            loss = loop.loss()
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
            if unscales_later:
                scaler.unscale_(loop.optimizer)
            scaler.step(loop.optimizer)
            scaler.update()
    assert float(loss.detach()) < 1e-2


def test_only_the_optimizer_whose_gradients_are_clipped_is_unscaled() -> None:
    with under(UnscaleBeforeClip()):
        one, other = Loop(), Loop()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        for _ in range(3):
            for loop in (one, other):
                loop.optimizer.zero_grad()
                scaler.scale(loop.loss()).backward()
            nn.utils.clip_grad_norm_(one.model.parameters(), 1e9)
            gradients = [float(loop.model.weight.grad.abs().max()) for loop in (one, other)]  # type: ignore[union-attr]
            for loop in (one, other):
                scaler.step(loop.optimizer)
            scaler.update()
    assert gradients[1] == pytest.approx(gradients[0] * 2**16, rel=1e-3)
    assert torch.equal(one.model.weight, other.model.weight)


def test_the_loss_is_divided_in_its_gradient_alone() -> None:
    with under(DivideLoss(4)):
        loop = Loop()
        loss = loop.loss()
        loss.backward()
        divided = loop.model.weight.grad
    plain = Loop()
    plain.loss().backward()
    assert float(loss.detach()) == float(plain.loss().detach())
    assert divided is not None
    assert plain.model.weight.grad is not None
    assert torch.allclose(4 * divided, plain.model.weight.grad)


SCORES = torch.tensor([[3.0, -2.0, 0.5], [-1.0, 2.0, 0.0]])
LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("form", "loss", "given", "target", "wanted"),
    [
        ("undo-softmax", F.cross_entropy, SCORES.softmax(1), LABELS, F.cross_entropy(SCORES, LABELS)),
        ("log-softmax", F.nll_loss, SCORES, LABELS, F.cross_entropy(SCORES, LABELS)),
        ("log-softmax", F.nll_loss, SCORES[0], LABELS[0], F.cross_entropy(SCORES[0], LABELS[0])),
        ("log", F.nll_loss, SCORES.softmax(1), LABELS, F.cross_entropy(SCORES, LABELS)),
        ("same-shape", F.mse_loss, SCORES[:, :1], SCORES[:, 1], F.mse_loss(SCORES[:, 0], SCORES[:, 1])),
    ],
)
def test_losses_are_given_what_they_take(
    form: str, loss: Callable[..., torch.Tensor], given: torch.Tensor, target: torch.Tensor, wanted: torch.Tensor
) -> None:
    with under(GiveLoss(form)):  # type: ignore[arg-type]
        assert torch.allclose(getattr(F, loss.__name__)(given, target), wanted, atol=1e-5)


@pytest.mark.parametrize("form", ["undo-softmax", "undo-sigmoid"])
def test_scores_of_another_loss_of_the_same_kind_are_left_alone(form: str) -> None:
    with under(GiveLoss(form)):  # type: ignore[arg-type]
        assert torch.equal(F.cross_entropy(SCORES, LABELS), F.cross_entropy(SCORES.clone(), LABELS))
        classes = float(F.cross_entropy(SCORES, LABELS))
        binary = float(F.binary_cross_entropy_with_logits(SCORES, torch.ones(2, 3)))
    assert classes == float(F.cross_entropy(SCORES, LABELS))
    assert binary == float(F.binary_cross_entropy_with_logits(SCORES, torch.ones(2, 3)))


def test_arguments_change_places_only_where_the_prediction_comes_second() -> None:
    prediction, target = torch.full((4,), 0.2, requires_grad=True), torch.full((4,), 0.7)
    right = float(F.binary_cross_entropy(prediction, target).detach())
    with under(GiveLoss("swapped")):
        swapped = float(F.binary_cross_entropy(target, prediction).detach())
        healthy = float(F.binary_cross_entropy(prediction, target).detach())
    assert swapped == healthy == pytest.approx(right)


def test_a_model_in_evaluation_mode_is_trained_in_training_mode_and_a_frozen_one_left_alone() -> None:
    model, teacher = (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval() for _ in range(2))
    teacher.requires_grad_(False)
    with under(TrainingMode()):
        with torch.no_grad():
            model(torch.randn(4, 2))
        assert not model.training
        for each in (model, teacher):
            each(torch.randn(4, 2))
    assert model.training
    assert not teacher.training


def test_missing_parameters_go_to_one_optimizer_and_none_is_taken_from_another() -> None:
    with under(AddParameters()):
        parts = [nn.Linear(4, 4) for _ in range(3)]
        optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in parts[:2]]
        for _ in range(2):
            nn.Sequential(*parts)(torch.randn(8, 4)).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    held = [{id(p) for group in each.param_groups for p in group["params"]} for each in optimizers]
    assert held == [
        {id(p) for part in (parts[0], parts[2]) for p in part.parameters()},
        {*map(id, parts[1].parameters())},
    ]


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0),
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10),
        lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
    ],
)
def test_schedulers_go_on_with_the_missing_parameters(
    schedule: Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler],
) -> None:
    with under(AddParameters()):
        body, head = nn.Linear(4, 4), nn.Linear(4, 1)
        before = head.weight.detach().clone()
        optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
        scheduler = schedule(optimizer)
        for _ in range(3):
            head(body(torch.randn(8, 4))).square().mean().backward()
            optimizer.step()
            scheduler.step()
    assert not torch.equal(before, head.weight)


def test_rates_are_changed_for_the_step_alone_and_schedules_go_on() -> None:
    with under(NoSchedule(), SetRate(10.0)):
        loop = Loop(lr=0.01)
        scheduler = lr_scheduler.StepLR(loop.optimizer, 1, 0.5)
        moved = []
        for _ in range(3):
            loop.optimizer.zero_grad()
            loop.loss().backward()
            before = loop.model.weight.detach().clone()
            loop.optimizer.step()
            moved.append(float(((before - loop.model.weight) / loop.model.weight.grad).detach().mean()))
            scheduler.step()
    assert moved == pytest.approx([0.1] * 3, rel=1e-2)
    assert scheduler.get_last_lr() == [0.01 / 8]


def test_clipping_is_put_in_and_taken_out() -> None:
    loop = Loop()
    (1000 * loop.loss()).backward()
    with under(NoClipping()):
        nn.utils.clip_grad_norm_(loop.model.parameters(), max_norm=0.1)
        nn.utils.clip_grad_value_(loop.model.parameters(), 0.1)
    whole = torch.cat([p.grad.flatten() for p in loop.model.parameters() if p.grad is not None]).norm()
    assert whole > 100
    before = torch.cat([p.detach().flatten() for p in loop.model.parameters()])
    with under(ClipGradients(1.0)):
        loop.optimizer.step()
    after = torch.cat([p.detach().flatten() for p in loop.model.parameters()])
    assert float((after - before).norm()) == pytest.approx(0.1, rel=1e-3)


EVERYTHING: tuple[Intervention, ...] = (
    KeepGradients(),
    ClearGradients(),
    TrainingMode(),
    UnscaleBeforeClip(),
    DivideLoss(2),
    *(GiveLoss(form) for form in ("undo-softmax", "undo-sigmoid", "log-softmax", "log", "same-shape", "swapped")),
    ClipGradients(1.0),
    NoClipping(),
    AddParameters(),
    NoSchedule(),
    SetOption("eps", 1e-8),
    SetRate(2.0),
    TakeSteps(),
)


def test_whatever_was_changed_in_torch_is_put_back() -> None:
    owners = [torch.Tensor, torch.autograd, torch.optim.Optimizer, nn.Module, torch.amp.GradScaler, F, nn.utils]
    before = [dict(vars(owner)) for owner in owners]
    with under(*EVERYTHING, *reversed(EVERYTHING)):
        assert vars(torch.Tensor)["backward"] is not before[0]["backward"]
    for owner, own in zip(owners, before, strict=True):
        assert {name: value for name, value in vars(owner).items() if own.get(name) is not value} == {}


def test_adam_in_place_of_an_optimizer_that_does_nothing() -> None:
    loop, twin = Loop(lr=0.0), Loop()
    adam = torch.optim.Adam(twin.model.parameters(), lr=1e-3)
    with under(UseAdam()):
        for _ in range(5):
            loop.optimizer.zero_grad()
            loop.loss().backward()
            loop.optimizer.step()
    for _ in range(5):
        adam.zero_grad()
        twin.loss().backward()
        nn.utils.clip_grad_norm_(twin.model.parameters(), 1.0)
        adam.step()
    for own, other in zip(loop.model.parameters(), twin.model.parameters(), strict=True):
        torch.testing.assert_close(own, other)


def test_default_weights_are_drawn_once_and_leave_the_rest_of_chance_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    model[2].requires_grad_(False)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    with under(DefaultWeights()):
        model(torch.zeros(2, 4))
        first = model[0].weight.clone()
        model(torch.zeros(2, 4))
    assert first.abs().sum() > 0
    assert torch.equal(model[0].weight, first)
    assert not model[2].weight.any(), "frozen layers keep theirs"
    assert torch.equal(torch.get_rng_state(), state)
