"""A loop that would train something else than it says is refused, in one sentence that says what to do."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
from gradients.loops import data, optimizer_of, parts_of, small_model, weights
from torch import Tensor, nn
from torch.nn import functional

from unstuck import GradientManager
from unstuck.gradients import ClipAdaptive, ClipNorm, ClipValue, MisuseError, suggest_max_norm

INPUTS, LABELS = data(12)
PARTS = parts_of(12, [4, 4, 4])


class Setting:
    """A model, its optimizer and a manager, and a loss when one is needed."""

    def __init__(self, **options: object) -> None:
        self.model = small_model()
        self.optimizer = optimizer_of("sgd", self.model)
        self.manager = GradientManager(self.model, self.optimizer, **options)  # type: ignore[arg-type]

    def loss(self, part: slice = PARTS[0]) -> Tensor:
        return functional.cross_entropy(self.model(INPUTS[part]), LABELS[part])


def test_step_without_backward_and_step_twice() -> None:
    it = Setting()
    with pytest.raises(MisuseError, match=r"step\(\) needs a backward\(\)"):
        it.manager.step()
    it.manager.backward(it.loss())
    it.manager.step()
    with pytest.raises(MisuseError, match=r"step\(\) needs a backward\(\)"):
        it.manager.step()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_touched_by_hand(accumulate: int) -> None:
    touches = {
        "changed (clipped": lambda it: nn.utils.clip_grad_norm_(it.model.parameters(), 0.01),
        "changed (clipped, unscaled, divided": lambda it: [p.grad.div_(4) for p in it.model.parameters()],
        "changed": lambda it: [setattr(p, "grad", p.grad / 4) for p in it.model.parameters()],
        "cleared": lambda it: it.optimizer.zero_grad(),
        "added to by a loss.backward()": lambda it: it.loss().backward(),
        "used already, for the weights have moved": lambda it: it.optimizer.step(),
    }
    for words, touch in touches.items():
        it = Setting(accumulate=accumulate)
        loop = iter(it.manager.batches(PARTS))
        next(loop)
        it.manager.backward(it.loss())
        touch(it)
        if accumulate == 2:
            it.manager.step()
            next(loop)
        proceed = it.manager.step if accumulate == 1 else partial(it.manager.backward, it.loss())
        with pytest.raises(MisuseError, match=r"The gradients of an open window were .*by hand\?\)") as refused:
            proceed()
        assert words in str(refused.value)


def test_unscaled_by_hand() -> None:
    it = Setting(scaler=(scaler := torch.amp.GradScaler("cpu")))
    it.manager.backward(it.loss())
    scaler.unscale_(it.optimizer)
    with pytest.raises(MisuseError, match="unscaled by hand"):
        it.manager.step()
    it.manager.discard()
    it.manager.backward(it.loss())
    assert it.manager.step().updated


def test_backward_by_hand_before_the_window() -> None:
    it = Setting()
    it.loss().backward()
    with pytest.raises(
        MisuseError, match="4 parameters already have a gradient that did not come through this manager"
    ):
        it.manager.backward(it.loss())
    it.manager.discard()
    it.manager.backward(it.loss())
    assert it.manager.step().updated


def test_backward_after_step() -> None:
    it = Setting()
    loss = it.loss()
    it.manager.backward(loss)
    it.manager.step()
    with pytest.raises(MisuseError, match="This loss was used before"):
        it.manager.backward(loss)
    with pytest.raises(MisuseError, match=r"backward\(\) failed in this window: call discard\(\)"):
        it.manager.step()
    it.manager.discard()
    stale = it.loss()
    it.manager.backward(it.loss())
    it.manager.step()
    with pytest.raises(MisuseError, match=r"as the weights do in step\(\)"):
        it.manager.backward(stale)


def test_accumulation_needs_to_know_its_epoch() -> None:
    it = Setting(accumulate=2)
    with pytest.raises(MisuseError, match=r"loop over manager.batches\(loader\)"):
        it.manager.backward(it.loss())


def test_an_epoch_left_early_must_be_finished_or_dropped() -> None:
    for way_out in ("finish", "discard"):
        it = Setting(accumulate=3)
        before = weights(it.model)
        for part in it.manager.batches(PARTS):
            it.manager.backward(it.loss(part))
            it.manager.step()
            break
        with pytest.raises(MisuseError, match=r"left with 1 micro-steps.*finish\(\).*discard\(\)"):
            next(iter(it.manager.batches(PARTS)))
        getattr(it.manager, way_out)()
        assert torch.equal(before, weights(it.model)) == (way_out == "discard")
        assert it.manager.steps == (way_out == "finish")
        next(iter(it.manager.batches(PARTS)))


def test_finish_divides_by_what_there_is() -> None:
    one, other = Setting(accumulate=3), Setting()
    for part in one.manager.batches(PARTS):
        one.manager.backward(one.loss(part))
        one.manager.step()
        break
    assert one.manager.finish().micro_steps == 1
    other.manager.backward(other.loss())
    other.manager.step()
    assert torch.allclose(weights(one.model), weights(other.model), atol=1e-7)
    assert not one.manager.finish().updated


def test_a_forgotten_step_in_a_loop_over_batches() -> None:
    it = Setting()
    loop = iter(it.manager.batches(PARTS))
    it.manager.backward(it.loss(next(loop)))
    with pytest.raises(MisuseError, match=r"step\(\) is missing"):
        next(loop)


def test_two_loops_at_once() -> None:
    it = Setting(accumulate=2)
    outer = iter(it.manager.batches(PARTS))
    next(outer)
    with pytest.raises(MisuseError, match="still running"):
        next(iter(it.manager.batches(PARTS)))
    it.manager.discard()
    assert [*it.manager.batches([])] == []


def test_an_exception_in_the_loop_or_in_backward() -> None:
    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
            raise torch.OutOfMemoryError("no memory")

    it = Setting(accumulate=2)
    loop = iter(it.manager.batches(PARTS))
    broken = Breaks.apply(it.model(INPUTS[next(loop)])).sum()
    with pytest.raises(torch.OutOfMemoryError):
        it.manager.backward(broken)
    del loop
    with pytest.raises(MisuseError, match=r"discard\(\)"):
        it.manager.finish()
    it.manager.discard()
    for part in it.manager.batches(PARTS):
        it.manager.backward(it.loss(part))
        it.manager.step()
    assert it.manager.steps == 2


def test_losses_that_are_none() -> None:
    it = Setting()
    for loss, words in (
        (it.loss().detach(), "cut off from the parameters"),
        (it.model(INPUTS), r"one number, and the loss has the shape \[12, 3\]"),
        (it.loss().item(), "was given a float"),
    ):
        with pytest.raises(MisuseError, match=words):
            it.manager.backward(loss)  # type: ignore[arg-type]
    stranger = torch.zeros((), requires_grad=True)
    it.manager.backward(stranger * 2)
    with pytest.raises(MisuseError, match="the loss does not depend on any of them"):
        it.manager.step()


def test_counts_that_make_no_sense() -> None:
    it = Setting(accumulate=2)
    loop = iter(it.manager.batches(PARTS))
    next(loop)
    it.manager.backward(it.loss(), count=4)
    with pytest.raises(MisuseError, match="different counts"):
        it.manager.backward(it.loss(), count=5)
    it.manager.step()
    next(loop)
    with pytest.raises(MisuseError, match="in every micro-step of a window or in none"):
        it.manager.backward(it.loss())
    with pytest.raises(MisuseError, match=r"has the shape \[4\]"):
        it.manager.backward(it.loss(), count=torch.ones(4))


def test_a_scheduler_stepped_by_hand() -> None:
    model = small_model()
    optimizer = optimizer_of("sgd", model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    manager = GradientManager(model, optimizer, scheduler=scheduler)
    manager.backward(functional.cross_entropy(model(INPUTS), LABELS))
    manager.step()
    scheduler.step()
    manager.backward(functional.cross_entropy(model(INPUTS), LABELS))
    with pytest.raises(MisuseError, match="StepLR was stepped by hand"):
        manager.step()


def test_what_a_manager_cannot_step() -> None:
    model, other = small_model(), small_model()
    optimizer, stranger = optimizer_of("sgd", model), optimizer_of("sgd", other)
    with pytest.raises(MisuseError, match="LBFGS calls the loss itself"):
        GradientManager(model, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(MisuseError, match="ReduceLROnPlateau waits for a validation loss"):
        GradientManager(model, optimizer, scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer))  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match="StepLR belongs to an optimizer that this manager does not have"):
        GradientManager(model, optimizer, scheduler=torch.optim.lr_scheduler.StepLR(stranger, 1))
    with pytest.raises(MisuseError, match="holds no parameter of this model"):
        GradientManager(model, stranger)
    with pytest.raises(ValueError, match="at least one optimizer"):
        GradientManager(model, [])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accumulate": 0}, "1 or more, not 0"),
        ({"accumulate": 2.0}, "1 or more, not 2.0"),
        ({"snapshot_every": 0}, "snapshot_every is a whole number, 1 or more, not 0"),
        ({"clip": True}, "clip is a norm such as 1.0"),
        ({"clip": "1.0"}, "clip is a norm such as 1.0"),
        ({"clip": 0.0}, "max_norm must be above 0"),
        ({"clip": float("nan")}, "max_norm must be above 0"),
        ({"reduction": "none"}, '"mean" or "sum", not'),
        ({"on_nonfinite": "panic"}, "one of raise, skip, rewind, ignore, not 'panic'"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Setting(**options)


def test_clips_that_make_no_sense() -> None:
    for wrong in (
        lambda: ClipNorm(1.0, per="tensor"),  # type: ignore[arg-type]
        lambda: ClipNorm([1.0, 2.0]),
        lambda: ClipNorm([], per="group"),
        lambda: ClipNorm(-1.0),
        lambda: ClipAdaptive(90),
        lambda: ClipAdaptive(warmup=300),
        lambda: ClipValue(0),
        lambda: suggest_max_norm([]),
        lambda: suggest_max_norm([0.0, 0.0]),
        lambda: suggest_max_norm([1.0], quantile=95),
    ):
        with pytest.raises(ValueError, match=r"\w.*\.$"):
            wrong()


def test_parameters_in_no_optimizer_are_mentioned() -> None:
    model = small_model()
    with pytest.warns(UserWarning, match=r"2 trainable parameters are in no optimizer.*\(2.weight, 2.bias\)"):
        GradientManager(model, torch.optim.SGD(model[0].parameters(), lr=0.1))
    model[2].requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GradientManager(model, torch.optim.SGD(model[0].parameters(), lr=0.1))


def test_a_newer_manager_takes_over() -> None:
    it = Setting()
    newer = GradientManager(it.model, it.optimizer)
    with pytest.raises(MisuseError, match="newer GradientManager"):
        it.manager.backward(it.loss())
    newer.backward(it.loss())
    assert newer.step().updated
    scaler = torch.amp.GradScaler("cpu")
    one, other = Setting(scaler=scaler), Setting(scaler=scaler)
    with pytest.raises(MisuseError, match="share a GradScaler"):
        one.manager.backward(one.loss())
    assert other.manager.scaler is scaler
