"""What a record tells of a training loop, in which order, with which numbers."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from unstuck.events import (
    Backward,
    Clip,
    Crash,
    Forward,
    Gauges,
    ModeChange,
    ModelSeen,
    OptimizerSeen,
    OptimizerStep,
    SchedulerStep,
    StepSkipped,
    Unscale,
    ZeroGrad,
)

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def loss_of(model: nn.Module) -> torch.Tensor:
    return nn.functional.cross_entropy(model(X), Y)


def kinds(record, *wanted):
    return [type(event).__name__ for event in record.of(*wanted)]


LOOP = (ZeroGrad, Forward, Backward, Clip, OptimizerStep, SchedulerStep, Unscale, StepSkipped)


def test_a_usual_loop_is_told_in_order(recorded):
    def train():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(model).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()

    record = recorded(train)
    once = ["ZeroGrad", "Forward", "Backward", "Clip", "OptimizerStep", "SchedulerStep"]
    assert kinds(record, *LOOP) == once * 2
    assert [event.step for event in record.of(OptimizerStep)] == [0, 1]
    assert [event.cleared for event in record.of(ZeroGrad)] == [0, 4]
    assert [event.rates for event in record.of(SchedulerStep)] == [(0.05,), (0.025,)]
    assert [event.rates for event in record.of(Gauges)] == [(0.1,), (0.05,)]
    assert not record.notes
    assert record.ended
    assert record.ended.steps == 2


def test_places_name_the_line_and_columns(recorded):
    def train():
        model = net()
        loss = loss_of(model)
        loss.backward()

    record = recorded(train)
    place = next(record.of(Backward)).place
    lines, start = inspect.getsourcelines(train)
    wanted = next(number for number, line in enumerate(lines) if "backward" in line)
    assert place is not None
    assert place.path.endswith("test_loop_events.py")
    assert place.line == start + wanted
    assert lines[wanted][place.column - 1 : place.end_column - 1] == "loss.backward()"
    assert place.function.endswith("train")


def test_measured_numbers_are_right(recorded):
    model = net()
    loss = loss_of(model)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    norm = torch.cat([gradient.reshape(-1) for gradient in gradients]).norm().item()

    def train():
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loss_of(model).backward()
        nn.utils.clip_grad_norm_(parameters=model.parameters(), max_norm=100.0)
        optimizer.step()

    record = recorded(train)
    step, clip = next(record.of(OptimizerStep)), next(record.of(Clip))
    assert step.grad_norm == pytest.approx(norm, rel=1e-5)
    assert clip.norm == pytest.approx(norm, rel=1e-5)
    assert (clip.with_grad, clip.parameters, clip.limit, clip.target) == (4, 4, 100.0, "Sequential")
    assert (step.with_grad, step.parameters, step.inside_closure) == (4, 4, False)
    assert next(record.of(Backward)).value == pytest.approx(loss.item())
    assert record.losses == [(0, pytest.approx(loss.item()))]


def test_clip_before_backward_finds_no_gradients(recorded):
    def train():
        model = net()
        loss = loss_of(model)
        nn.utils.clip_grad_value_(list(model.parameters()), 1.0)
        loss.backward()

    clip = next(recorded(train, raises=RuntimeError).of(Clip))
    assert (clip.kind, clip.with_grad, clip.parameters, clip.norm) == ("value", 0, 4, None)


def test_a_closure_is_told_inside_its_step(recorded):
    def train():
        model = net()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            return loss

        optimizer.step(closure)

    record = recorded(train)
    step = next(record.of(OptimizerStep))
    assert step.inside_closure
    assert step.with_grad == 4
    assert step.grad_norm is not None
    assert kinds(record, *LOOP)[-1] == "OptimizerStep"


def test_a_backward_that_fails_is_told_and_passes_on(recorded):
    messages = []

    def train():
        model = net()
        with torch.no_grad():
            loss = loss_of(model)
        try:
            loss.backward()
        except RuntimeError as error:
            messages.append(str(error))
            raise

    record = recorded(train, raises=RuntimeError)
    backward, forward = next(record.of(Backward)), next(record.of(Forward))
    assert "does not require grad" in messages[0]
    assert (backward.failed, backward.requires_grad, backward.leaf) == (True, False, False)
    assert (forward.grad_enabled, forward.output_requires_grad) == (False, False)
    assert record.crash
    assert record.crash.kind == "RuntimeError"
    assert record.crash.place
    assert record.crash.place.function.endswith("train")
    assert isinstance(next(record.of(Crash)), Crash)


def test_a_loss_without_history_is_a_leaf(recorded):
    def train():
        model = net()
        loss = loss_of(model).detach().requires_grad_(True)
        loss.backward()

    backward = next(recorded(train).of(Backward))
    assert (backward.requires_grad, backward.leaf, backward.failed) == (True, True, False)


def test_autograd_backward_is_told_once(recorded):
    def train():
        model = net()
        loss = loss_of(model)
        torch.autograd.backward([loss], retain_graph=True)
        torch.autograd.backward(loss)

    assert kinds(recorded(train), Backward) == ["Backward", "Backward"]


def test_models_and_optimizers_are_told_with_shared_keys(recorded):
    def train():
        model, other = net(), net()
        torch.optim.Adam(other.parameters())
        optimizer = torch.optim.Adam(model[0].parameters(), lr=0.2)
        optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.3})
        loss_of(model).backward()
        optimizer.step()

    record = recorded(train)
    model = next(record.of(ModelSeen))
    first, built, added, stepped = record.of(OptimizerSeen)
    assert [first.optimizer, built.optimizer, stepped.optimizer] == ["Adam", "Adam#2", "Adam#2"]
    assert (built.rates, added.rates) == ((0.2,), (0.2, 0.3))
    keys = {parameter.key: parameter.name for parameter in model.parameters}
    assert [keys[parameter.key] for parameter in added.parameters] == [
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
    ]
    assert [parameter.name for parameter in stepped.parameters] == [
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
    ]
    assert [module.kind for module in model.modules] == ["Sequential", "Linear", "ReLU", "Linear"]
    assert not {parameter.key for parameter in first.parameters} & keys.keys()


def test_a_replaced_head_is_told_again(recorded):
    def train():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(3):
            if step == 1:
                model[2] = nn.Linear(5, 3)
            loss_of(model).backward()
            optimizer.step()

    before, after = recorded(train).of(ModelSeen)
    assert {p.key for p in before.parameters if p.name.startswith("0.")} <= {p.key for p in after.parameters}
    assert {p.key for p in before.parameters} != {p.key for p in after.parameters}


def test_modes_of_models_not_of_their_parts(recorded):
    def train():
        model = net()
        model.train()
        loss_of(model)
        model[0].eval()
        model.eval()

    assert [(c.model, c.training) for c in recorded(train).of(ModeChange)] == [
        ("Sequential", True),
        ("Sequential", False),
    ]


def test_zero_grad_of_models_and_of_overrides_counts_once(recorded):
    class Careful(torch.optim.SGD):
        def zero_grad(self, set_to_none=True):
            super().zero_grad(set_to_none)

    class Own(torch.optim.SGD):
        def zero_grad(self, set_to_none=True):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    def train():
        model = net()
        optimizers = Careful(model.parameters(), 0.1), Own(model.parameters(), 0.1)
        loss_of(model).backward()
        model.zero_grad(set_to_none=False)
        optimizers[0].zero_grad()
        optimizers[1].zero_grad()

    told = [(z.optimizer, z.model, z.set_to_none, z.cleared) for z in recorded(train).of(ZeroGrad)]
    assert told == [
        (None, "Sequential", False, 4),
        ("Careful", None, True, 4),
        ("Own", None, True, 0),
    ]


def test_user_schedulers_and_plateau_are_followed(recorded):
    class Halving(torch.optim.lr_scheduler.LRScheduler):
        def get_lr(self):
            return [group["lr"] / 2 for group in self.optimizer.param_groups]

        def step(self, epoch=None):
            super().step(epoch)

    def train():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        halving = Halving(optimizer)
        loss_of(model).backward()
        optimizer.step()
        halving.step()
        plateau.step(1.0)

    assert [s.kind for s in recorded(train).of(SchedulerStep)] == ["Halving", "ReduceLROnPlateau"]


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_that_skips_a_step(recorded, fused):
    def train():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            if step == 1:
                model[0].weight.grad[0, 0] = float("inf")
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()

    record = recorded(train)
    once = ["ZeroGrad", "Forward", "Backward", "Unscale", "OptimizerStep"]
    assert kinds(record, *LOOP) == [*once, *once[:-1], "StepSkipped", *once]
    losses = [backward.value for backward in record.of(Backward)]
    assert losses[0] == pytest.approx(loss_of(net()).item())
    assert "NonFinite" not in kinds(record)


def test_a_scaler_steps_without_an_explicit_unscale(recorded):
    def train():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(model)).backward()
        scaler.step(optimizer)
        scaler.update()

    assert kinds(recorded(train), *LOOP) == ["Forward", "Backward", "OptimizerStep"]


def test_an_optimizer_that_steps_inside_backward_comes_after_it(recorded):
    def train():
        model = net()
        for parameter in model.parameters():
            optimizer = torch.optim.SGD([parameter], 0.1)
            parameter.register_post_accumulate_grad_hook(lambda _, o=optimizer: o.step())
        loss_of(model).backward()

    record = recorded(train)
    assert kinds(record, Backward, OptimizerStep) == ["Backward"] + ["OptimizerStep"] * 4


def test_a_step_that_raised_does_not_confuse_the_next(recorded):
    class Breaking(torch.optim.SGD):
        def step(self, closure=None):
            raise ValueError("no")

    def train():
        model = net()
        broken, sound = Breaking(model.parameters(), 0.1), torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            loss_of(model).backward()
            with pytest.raises(ValueError, match="no"):
                broken.step()
            sound.step()

    assert [s.optimizer for s in recorded(train).of(OptimizerStep)] == ["SGD", "SGD"]


def test_checkpointing_runs_forward_twice_and_is_told_once(recorded):
    from torch.utils.checkpoint import checkpoint

    def train():
        model = net()
        hidden = checkpoint(model, X, use_reentrant=False)
        nn.functional.cross_entropy(hidden, Y).backward()

    assert kinds(recorded(train), Forward, Backward) == ["Forward", "Backward"]


def test_odd_gradients_are_left_alone(recorded):
    def train():
        table = nn.Embedding(10, 3, sparse=True)
        weight = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        optimizer = torch.optim.SGD([*table.parameters(), weight], 0.1)
        (table(torch.tensor([1, 2])).sum() + weight.abs().sum()).backward()
        optimizer.step()

    record = recorded(train)
    step = next(record.of(OptimizerStep))
    assert (step.with_grad, step.grad_norm) == (2, None)
    assert not record.notes


def test_half_precision_norms_do_not_overflow(recorded):
    def train():
        weight = nn.Parameter(torch.full((4096,), 1.0, dtype=torch.float16))
        optimizer = torch.optim.SGD([weight], 0.0)
        (weight.float() * 3000).sum().backward()
        optimizer.step()

    assert next(recorded(train).of(OptimizerStep)).grad_norm == pytest.approx(3000 * 64, rel=1e-3)
