"""Gradients that are NaN or infinite: named, skipped, or undone."""

from __future__ import annotations

import warnings

import pytest
import torch
from gradients.loops import data, optimizer_of, small_model, weights
from torch import Tensor, nn
from torch.nn import functional

from unstuck import GradientManager
from unstuck.gradients import NonFiniteGradientError

INPUTS, LABELS = data(12)


def loss_of(model: nn.Module, poison: float = 1.0) -> Tensor:
    return poison * functional.cross_entropy(model(INPUTS), LABELS)


def managed(**options: object) -> tuple[nn.Sequential, GradientManager]:
    model = small_model()
    return model, GradientManager(model, optimizer_of("adamw", model), **options)  # type: ignore[arg-type]


def test_a_loss_that_is_nan_is_told_as_such() -> None:
    model, manager = managed()
    before = weights(model)
    manager.backward(loss_of(model, float("nan")))
    with pytest.raises(NonFiniteGradientError, match=r"Step 1: The loss itself was nan, so 4 of 4 gradients"):
        manager.step()
    assert torch.equal(weights(model), before)
    manager.backward(loss_of(model))
    assert manager.step().updated  # who catches it can go on


def test_the_culprit_is_the_one_nearest_to_the_loss() -> None:
    """A square root at 0 between the layers: everything below it is NaN, the head is fine."""

    class Rooted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.below = nn.Linear(5, 4)
            self.middle = nn.Linear(4, 4)
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.middle(self.below(x).tanh())
            return self.head((hidden * 0).sqrt())

    model = Rooted()
    manager = GradientManager(model, torch.optim.SGD(model.parameters(), lr=0.1))
    manager.backward(loss_of(model))
    with pytest.raises(NonFiniteGradientError) as raised:
        manager.step()
    assert "The gradient of middle.bias (Linear) has the norm nan" in str(raised.value)
    assert "4 of 6 gradients are not finite" in str(raised.value)


def test_skip_counts_and_holds_everything_still() -> None:
    model = small_model()
    optimizer = optimizer_of("adamw", model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    manager = GradientManager(model, optimizer, scheduler=scheduler, on_nonfinite="skip")
    updated = []
    for poison in (1.0, float("inf"), 1.0, float("nan")):
        before = weights(model)
        manager.backward(loss_of(model, poison))
        step = manager.step()
        updated.append(step.updated)
        assert step.skipped == (not step.updated) == torch.equal(weights(model), before)
    assert updated == [True, False, True, False]
    assert (manager.steps, manager.skipped, scheduler.last_epoch) == (2, 2, 2)
    assert "skipped" in repr(step)


def test_skipping_without_end_is_mentioned() -> None:
    model, manager = managed(on_nonfinite="skip")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(15):
            manager.backward(loss_of(model, float("nan")))
            manager.step()
    assert [str(warning.message)[:36] for warning in caught] == ["10 steps in a row were skipped. The "]


def test_rewind_puts_everything_back() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = optimizer_of("adamw", model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    manager = GradientManager(model, optimizer, scheduler=scheduler, on_nonfinite="rewind", snapshot_every=2)
    states = []
    for _ in range(3):
        states.append({name: value.clone() for name, value in model.state_dict().items()})
        manager.backward(loss_of(model))
        manager.step()
    manager.backward(loss_of(model, float("nan")))
    step = manager.step()
    assert (step.skipped, step.rewound, manager.rewinds, manager.steps, scheduler.last_epoch) == (True, True, 1, 2, 2)
    kept = [key for key in states[2] if "running" not in key and "tracked" not in key]
    assert all(torch.equal(model.state_dict()[key], states[2][key]) for key in kept)
    assert optimizer.state[model[0].weight]["step"] == 2
    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_rewinding_does_not_go_on_for_ever() -> None:
    model, manager = managed(on_nonfinite="rewind")
    for _ in range(3):
        manager.backward(loss_of(model, float("nan")))
        assert manager.step().rewound
    manager.backward(loss_of(model, float("nan")))
    with pytest.raises(NonFiniteGradientError, match="put back to step 0 3 times"):
        manager.step()


@pytest.mark.parametrize("policy", ["raise", "skip", "rewind", "ignore"])
def test_a_scaler_that_finds_its_scale_is_left_to_it(policy: str) -> None:
    """An overflow at a scale above 1 is calibration: skipped, counted, and not an error."""
    model = small_model()
    optimizer = optimizer_of("adamw", model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    manager = GradientManager(model, optimizer, scaler=scaler, scheduler=scheduler, on_nonfinite=policy, clip=1.0)  # type: ignore[arg-type]
    scales, before = [], weights(model)
    for _ in range(6):
        manager.backward(loss_of(model, 40.0))
        step = manager.step()
        scales.append(step.scale)
    assert scales[:3] == [2.0**127, 2.0**126, 2.0**125]
    assert manager.skipped > 0
    assert manager.steps > 0
    assert (manager.steps + manager.skipped, scheduler.last_epoch) == (6, manager.steps)
    assert not torch.equal(weights(model), before)


def test_a_scale_that_has_collapsed_is_no_calibration() -> None:
    model, manager = managed(scaler=torch.amp.GradScaler("cpu", init_scale=4.0))
    for scale in (4.0, 2.0):
        manager.backward(loss_of(model, float("nan")))
        assert manager.step().scale == scale
    manager.backward(loss_of(model, float("nan")))
    with pytest.raises(NonFiniteGradientError, match="The loss itself was nan"):
        manager.step()  # at 1 the scale is not to blame any more


def test_ignoring_lets_it_through() -> None:
    for clip in (None, 1.0):
        model, manager = managed(on_nonfinite="ignore", clip=clip)
        manager.backward(loss_of(model, float("nan")))
        assert not manager.step().skipped
        assert weights(model).isnan().any()
