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
from unstuck.findings.surface import Surface
from unstuck.surface.loss import SurfaceError
from unstuck.surface.weights.sharpness import lanczos, top_eigenvalues

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
    assert surface.method == "vectorised"


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
    from unstuck.surface.weights.landscape import _random

    start = {name: weight.detach() for name, weight in network().named_parameters()}
    (way,) = _random(start, 1, seed=0)
    for name in ("0.weight", "2.weight"):
        torch.testing.assert_close(way[name].norm(dim=1), start[name].norm(dim=1))
    assert not way["0.bias"].any()


class Tokens(nn.Module):
    """An embedding, layers on sequences, one weight used twice, and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mix, self.head = nn.Embedding(7, 5), nn.Linear(5, 5, bias=False), nn.Linear(5, 20)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x)
        h = h + torch.sigmoid(self.mix(torch.relu(self.mix(h))))
        return self.head(h).mean(1)  # type: ignore[no-any-return]


class Siamese(nn.Module):
    """One layer for two inputs, for a changed one, and once more for its own output."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        sides = self.shared(x) - self.shared(other) + self.shared(2 * x)
        return self.head(torch.tanh(self.shared(sides)))  # type: ignore[no-any-return]


class Scaled(nn.Module):
    """A weight outside of any layer: not foldable, but vmap takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(6, 6)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x @ self.scale)  # type: ignore[no-any-return]


class Centred(nn.Module):
    """Rows of the batch that know of each other, as in a batch norm: folding would mix the points."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.head((h - h.mean(0)) / h.std(0))  # type: ignore[no-any-return]


def images() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 20, 3, stride=2, groups=2), nn.Tanh(), nn.MaxPool2d(3, stride=1, padding=1)),
        *(nn.Flatten(), nn.Linear(180, 3)),
    ).eval()


SQUARES = torch.randn(5, 1, 16, 16, generator=torch.Generator().manual_seed(2)), torch.arange(5) % 3
WORDS = torch.arange(24).reshape(4, 6) % 7, torch.arange(4)
MODELS: dict[str, tuple[Any, Any, Any, str]] = {
    "perceptron": (network, BATCH, F.cross_entropy, "vectorised"),
    "smoothed": (network, BATCH, nn.CrossEntropyLoss(label_smoothing=0.1), "vectorised"),
    "ignoring": (network, BATCH, nn.CrossEntropyLoss(ignore_index=1), "vectorised"),
    "squares": (network, (BATCH[0], torch.randn(16, 3)), nn.MSELoss(), "vectorised"),
    "viewed": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 20), nn.Linear(20, 3)),
        SQUARES,
        F.cross_entropy,
        "vectorised",
    ),
    "images": (images, SQUARES, F.cross_entropy, "vectorised"),
    "tokens": (Tokens, WORDS, F.cross_entropy, "vectorised"),
    "siamese": (Siamese, ((BATCH[0], BATCH[0].flip(0)), BATCH[1]), F.cross_entropy, "vectorised"),
    "scaled": (Scaled, BATCH, F.cross_entropy, "vmap"),
    "centred": (Centred, BATCH, F.cross_entropy, "vmap"),
}


@pytest.mark.parametrize("exact", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
def test_the_plane_is_what_running_the_model_at_every_point_gives(name: str, exact: bool) -> None:
    make, batch, loss_fn, method = MODELS[name]
    torch.manual_seed(3)
    model = make()
    moved = [{key: 1.5 * value + 0.1 for key, value in model.state_dict().items()}, dict(model.state_dict())]
    moved[1] = {key: value * 0.5 if value.is_floating_point() else value for key, value in moved[1].items()}
    for ends in ((), moved[: 2 * (name != "images")]):  # whose norms move too, which is tested below
        seen = unstuck.surface.landscape(model, loss_fn, batch, to=ends, points=7, eigenvalues=0, exact=exact)
        assert seen.method == method
        wanted = _one_by_one(model, loss_fn, batch, ends, seen)
        np.testing.assert_allclose(seen.value, wanted, rtol=1e-4, atol=1e-6)


def _one_by_one(model: nn.Module, loss_fn: Any, batch: Any, ends: Any, seen: Surface) -> np.ndarray:
    """The same plane by the plainest way there is: a copy of the model, its weights set, for every point."""
    from unstuck.surface.weights.landscape import _random

    start = {name: weight.detach() for name, weight in model.named_parameters()}
    ways = [{key: end[key] - start[key] for key in start} for end in ends] or _random(start, 2, seed=0)
    values = []
    for a in seen.axes[0].points:
        for b in seen.axes[1].points:
            other = copy.deepcopy(model)
            with torch.no_grad():
                for key, weight in other.named_parameters():
                    weight.copy_(start[key] + a * ways[0][key] + b * ways[1][key])
                arguments = batch[0] if isinstance(batch[0], tuple) else (batch[0],)
                values.append(float(loss_fn(other(*arguments), batch[1])))
    return np.array(values).reshape(seen.value.shape)


def test_norms_that_move_are_mapped() -> None:
    torch.manual_seed(3)
    model = images()
    end = {key: 1.5 * value + 0.1 if value.is_floating_point() else value for key, value in model.state_dict().items()}
    seen = unstuck.surface.landscape(model, F.cross_entropy, SQUARES, to=[end, end], points=5, eigenvalues=0)
    assert seen.method == "vmap"
    np.testing.assert_allclose(
        seen.value, _one_by_one(model, F.cross_entropy, SQUARES, [end, end], seen), rtol=1e-4, atol=1e-6
    )


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
