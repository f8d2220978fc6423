"""`probe` reads live objects and leaves them exactly as they were."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from unstuck.check.probe import probe


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
        self.head = nn.Linear(6, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x, scale=1.0):
        return torch.softmax(self.head(self.body(x)) * scale, 1)


X, Y = torch.randn(8, 4), torch.arange(8) % 3


def everything(model: nn.Module) -> list[object]:
    return [
        [tensor.tolist() for tensor in (*model.parameters(), *model.buffers())],
        [(id(parameter.grad), parameter.requires_grad) for parameter in model.parameters()],
        [module.training for module in model.modules()],
        torch.get_rng_state().tolist(),
        random.getstate(),
    ]


@pytest.fixture
def model() -> Net:
    model = Net()
    model(X).sum().backward()
    model.body[1].eval()
    model.head.bias.requires_grad_(False)
    return model


def test_facts_without_a_batch(model):
    optimizer = torch.optim.SGD(
        [{"params": model.head.parameters(), "lr": 0.5}, {"params": model.body.parameters()}], 0.1
    )
    setup = probe(model, optimizer=optimizer)
    assert [seen.kind for seen in setup.models] == ["Net"]
    assert [parameter.name for parameter in setup.optimizers[0].parameters][:2] == [
        "head.weight",
        "head.bias",
    ]
    assert setup.optimizers[0].rates == (0.5, 0.1)
    keys = {parameter.key for parameter in setup.models[0].parameters}
    assert {parameter.key for parameter in setup.optimizers[0].parameters} < keys
    assert not setup.losses


def test_one_batch_shows_the_loss_and_what_gets_no_gradient(model):
    setup = probe(model, nn.CrossEntropyLoss(), batch=(X, Y))
    (loss,) = setup.losses
    assert loss.input
    assert loss.input.made_by == "SoftmaxBackward0"
    assert 0 < loss.gradient_kept < 1
    assert [backward.requires_grad for backward in setup.backwards] == [True]
    assert [parameter.name for parameter in setup.missing_gradients] == ["unused.weight", "unused.bias"]


@pytest.mark.parametrize("batch", [(X, Y), ((X, 2.0), Y), ({"x": X, "scale": 2.0}, Y)], ids=["tensor", "tuple", "dict"])
def test_everything_is_restored(model, batch):
    before = everything(model)

    def loss_fn(output, target):
        random.random()
        model.train()
        model.head.bias.requires_grad_(True)
        with torch.no_grad():
            model.head.bias.add_(1.0)
        return nn.functional.cross_entropy(output, target)

    probe(model, loss_fn, batch=batch)
    assert everything(model) == before


def test_a_dict_is_both_input_and_target(model):
    setup = probe(model, lambda output, batch: nn.functional.mse_loss(output, batch["x"][:, :3]), batch={"x": X})
    assert [loss.loss for loss in setup.losses] == ["mse_loss"]


def test_a_loss_that_is_cut_off(model):
    setup = probe(model, lambda output, target: output.detach().sum(), batch=(X, Y))
    assert [backward.requires_grad for backward in setup.backwards] == [False]
    assert len(setup.missing_gradients) == 7


def test_an_error_of_the_model_passes_and_everything_is_restored(model):
    before = everything(model)
    with pytest.raises(RuntimeError, match="mat1") as caught:
        probe(model, nn.CrossEntropyLoss(), batch=(torch.ones(8, 5), Y))
    assert caught.value.__notes__[0].startswith("unstuck.check called your model on the batch you gave; ")
    assert everything(model) == before


def test_a_buffer_bound_anew_is_bound_back():
    class Centered(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.register_buffer("center", torch.zeros(3))

        def forward(self, x):
            self.center = self.center + 1
            self.register_buffer("other", torch.ones(1))
            return super().forward(x)

    model = Centered()
    center = model.center
    probe(model, nn.CrossEntropyLoss(), batch=(X, Y))
    assert model.center is center
    assert list(model._buffers) == ["center"]


def test_a_loss_that_is_a_module_is_restored_too():
    class Margin(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, output, target):
            self.calls += 1
            return nn.functional.cross_entropy(self.layer(output), target)

    loss_fn = Margin()
    probe(nn.Linear(4, 3), loss_fn, batch=(X, Y))
    assert loss_fn.calls == 0
    assert loss_fn.layer.weight.grad is None


def test_a_tensor_is_the_single_input():
    shapes = []

    def loss_fn(output, target):
        shapes.append((tuple(output.shape), tuple(target.shape)))
        return output.sum()

    probe(nn.Linear(4, 3), loss_fn, batch=X[:2])
    assert set(shapes) == {((2, 3), (2, 4))}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((lambda x: x,), "model must be a torch.nn.Module, and this is a function."),
        ((nn.Linear(4, 3), lambda *_: {"loss": 0}, None, (X, Y)), "it returned a dict."),
        ((nn.Linear(4, 3), nn.MSELoss(), None, (X, Y, Y)), "and this is a tuple of 3."),
    ],
    ids=["model", "loss", "batch"],
)
def test_wrong_arguments_are_named(arguments, sentence):
    with pytest.raises(TypeError) as caught:
        probe(*arguments)
    assert str(caught.value).endswith(sentence)


def test_numbers_of_one_example_are_not_taken_for_examples():
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))
    seen = probe(model, lambda output, _: output.sum(), batch=torch.randn(3)).trial
    assert seen is not None
    assert seen.between_examples is None
    assert "examples" not in seen.done
