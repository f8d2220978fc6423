"""A model's landscape: true to the model, and leaving no trace."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unstuck
from unstuck.surface.loss import SurfaceError
from unstuck.surface.model import Surface
from unstuck.surface.sharpness import lanczos, top_eigenvalues

BATCH = torch.randn(16, 6, generator=torch.Generator().manual_seed(1)), torch.arange(16) % 3


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def landscape(model: nn.Module, **options: Any) -> Surface:
    return unstuck.surface.landscape(model, F.cross_entropy, BATCH, **{"points": 9, **options})


def test_the_middle_is_the_model_itself() -> None:
    model = network()
    surface = landscape(model)
    assert surface.value.shape == (9, 9)
    assert surface.value[4, 4] == pytest.approx(float(F.cross_entropy(model(BATCH[0]), BATCH[1])), rel=1e-5)
    assert surface.marks == ((0.0, 0.0),)
    assert surface.method == "vmap"


def test_every_point_is_the_loss_of_moved_weights() -> None:
    model, other = network(), network()
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(torch.randn_like(weight))
    surface = landscape(model, to=other.state_dict(), points=7)
    assert (surface.axes[0].low, surface.axes[0].high) == (-0.25, 1.25)
    for share, value in zip(surface.axes[0].points, surface.value, strict=True):
        between = copy.deepcopy(model)
        mixed = {k: (1 - share) * v + share * other.state_dict()[k] for k, v in model.state_dict().items()}
        between.load_state_dict(mixed)
        assert value == pytest.approx(float(F.cross_entropy(between(BATCH[0]), BATCH[1])), rel=1e-4)


def test_two_checkpoints_span_a_plane() -> None:
    model = network()
    ends = [{name: value + shift for name, value in model.state_dict().items()} for shift in (0.1, -0.2)]
    surface = landscape(model, to=ends)
    assert [axis.name for axis in surface.axes] == ["towards checkpoint 1", "towards checkpoint 2"]


def test_exact_gradients_agree_with_differences() -> None:
    model = network()
    exact, quick = landscape(model, exact=True, points=41), landscape(model, points=41)
    np.testing.assert_allclose(exact.value, quick.value, rtol=1e-5)
    np.testing.assert_allclose(exact.gradient, quick.gradient, atol=0.02)


def test_directions_are_as_long_as_the_models_filters_and_leave_biases_alone() -> None:
    from unstuck.surface.weights import _random

    start = {name: weight.detach() for name, weight in network().named_parameters()}
    (way,) = _random(start, 1, seed=0)
    for name in ("0.weight", "2.weight"):
        torch.testing.assert_close(way[name].norm(dim=1), start[name].norm(dim=1))
    assert not way["0.bias"].any()


class Awkward(nn.Module):
    """Batch norm, dropout and a branch on a value: nothing that vmap would take."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.head = nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.drop(self.norm(x)))
        return scores if scores.sum() > -1e9 else -scores


def test_everything_is_left_as_it_was() -> None:
    model = Awkward()
    model.head.weight.grad = torch.ones(3, 6)
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(5)
    state = torch.get_rng_state()
    surface = landscape(model)
    assert surface.method == "point by point"
    assert any("does not run under vmap" in note for note in surface.notes)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(model.head.weight.grad, torch.ones(3, 6))
    assert model.training
    assert not model._forward_hooks


def test_eigenvalues_are_those_of_the_hessian() -> None:
    model = network()
    names = [name for name, _ in model.named_parameters()]
    sizes = [weight.shape for weight in model.parameters()]

    def loss(flat: Tensor) -> Tensor:
        parts = torch.split(flat, [size.numel() for size in sizes])
        weights = {name: part.view(size) for name, part, size in zip(names, parts, sizes, strict=True)}
        return F.cross_entropy(torch.func.functional_call(model, weights, (BATCH[0],)), BATCH[1])

    whole = torch.func.hessian(loss)(torch.cat([weight.detach().flatten() for weight in model.parameters()]))
    wanted = torch.linalg.eigvalsh(whole.double()).flip(0)[:3]
    found = top_eigenvalues(model, F.cross_entropy, *BATCH, count=3)
    assert found == pytest.approx(tuple(wanted.tolist()), rel=1e-3)
    assert landscape(model).eigenvalues == pytest.approx(found)


def test_lanczos_on_a_known_matrix() -> None:
    matrix = torch.diag(torch.tensor([5.0, -7.0, 3.0, 1.0, 0.5]))
    found = lanczos(lambda vector: matrix @ vector, 5, 5, matrix)
    assert found.tolist() == pytest.approx([5, 3, 1, 0.5, -7], abs=1e-4)


def test_a_model_without_second_derivatives_says_so() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 2

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return Once.apply(self.head(x))  # type: ignore[no-any-return, no-untyped-call]

    surface = landscape(Model(), points=5)
    assert surface.eigenvalues == ()
    assert any("The Hessian cannot be had" in note for note in surface.notes)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch": 3}, "batch must be a pair of inputs and targets"),
        ({"to": {"0.weight": torch.zeros(1)}}, "the checkpoint does not fit the model: 0.weight"),
        ({"to": [{}, {}, {}]}, "3 checkpoints span more than a plane"),
        ({"model": nn.ReLU()}, "no weights that train"),
    ],
)
def test_bad_input_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    given = {"model": network(), "loss_fn": F.cross_entropy, "batch": BATCH, **options}
    with pytest.raises(SurfaceError, match=sentence):
        unstuck.surface.landscape(**given)
