"""Values and gradients on a grid: however the loss wants to be called, the same as one point at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unstuck
from unstuck.findings.surface import Surface
from unstuck.surface import field as fields
from unstuck.surface.loss import SurfaceError


def smooth(x: Tensor, y: Tensor) -> Tensor:
    return F.softplus(y - x) + 0.1 * x**2


def reducing(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([F.softplus(y - x), 0.1 * x**2]).sum()


def branching(x: Tensor, y: Tensor) -> Tensor:
    return smooth(x, y) if x > 100 else smooth(x, y) * 1.0


def draw(loss: Any, **options: Any) -> Surface:
    return unstuck.surface(loss, ("x", -2, 2), ("y", -1, 1), points=(7, 5), **options)


def naive(loss: Callable[..., Tensor], surface: Surface) -> tuple[np.ndarray, np.ndarray]:
    """What everybody writes first: a call and a backward for every point."""
    first, second = (axis.points for axis in surface.axes)
    value, gradient = np.zeros((7, 5)), np.zeros((2, 7, 5))
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            x, y = (torch.tensor(float(c), requires_grad=True) for c in (a, b))
            result = loss(x, y)
            result.backward()
            value[i, j], gradient[:, i, j] = float(result), (float(x.grad), float(y.grad))
    return value, gradient


@pytest.mark.parametrize(
    ("loss", "method"), [(smooth, "vectorised"), (reducing, "vmap"), (branching, "point by point")]
)
def test_every_method_gives_what_the_naive_loop_gives(loss: Callable[..., Tensor], method: str) -> None:
    surface = draw(loss)
    assert surface.method == method
    value, gradient = naive(loss, surface)
    np.testing.assert_allclose(surface.value, value, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(surface.gradient, gradient, rtol=1e-5, atol=1e-6)


def test_a_loss_that_couples_its_batch_is_not_called_with_all_points_at_once() -> None:
    def coupled(x: Tensor, y: Tensor) -> Tensor:
        return (x - x.mean()) ** 2 + y**2

    surface = draw(coupled)
    assert surface.method == "vmap"
    np.testing.assert_allclose(surface.value, np.broadcast_to(surface.axes[1].points ** 2, (7, 5)), atol=1e-6)


def test_memory_is_bounded_by_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "LARGEST_CHUNK", 64)
    seen: list[int] = []

    def watched(x: Tensor) -> Tensor:
        seen.append(x.numel())
        return x**2

    surface = unstuck.surface(watched, ("x", -1, 1), points=500)
    assert max(seen) <= 64
    np.testing.assert_allclose(surface.value, surface.axes[0].points ** 2, atol=1e-6)


def test_large_fixed_inputs_make_small_chunks() -> None:
    loss = fields.Loss("loss", lambda x: x, None, fixed_elements=2**20)
    assert fields.chunk_size(loss) == 64


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MSELoss()

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        return self.inner(prediction, target)  # type: ignore[no-any-return]


class Callee:
    def __call__(self, prediction: Tensor) -> Tensor:
        return prediction**2


@pytest.mark.parametrize(
    ("loss", "axis", "fixed"),
    [
        (nn.MSELoss, "input", {"target": 0.0}),
        (nn.MSELoss(reduction="none"), "input", {"target": 0.0}),
        (Module(), "prediction", {"target": torch.tensor(0.0)}),
        (Callee(), "prediction", {}),
        (Callee, "prediction", {}),
        (lambda anything: anything**2, "error", {}),
        (lambda *, prediction: prediction**2, "prediction", {}),
        (F.mse_loss, "error", {"target": 0.0}),
        (lambda prediction, target: ((prediction - target) ** 2).mean(), "prediction", {"target": [0.0, 0.0]}),
        (torch.square, "x", {}),
    ],
)
def test_anything_that_can_be_called(loss: Any, axis: str, fixed: dict[str, Any]) -> None:
    surface = unstuck.surface(loss, (axis, -2, 2), fixed=fixed, points=21)
    np.testing.assert_allclose(surface.value, surface.axes[0].points ** 2, atol=1e-5)
    np.testing.assert_allclose(surface.gradient[0], 2 * surface.axes[0].points, atol=1e-5)


def test_a_loss_that_wants_a_batch_gets_batches_of_one() -> None:
    def wants_batch(scores: Tensor) -> Tensor:
        return (scores[:, None] ** 2).sum(dim=1).mean()

    surface = unstuck.surface(wants_batch, ("scores", -2, 2), points=9)
    np.testing.assert_allclose(surface.value, surface.axes[0].points ** 2, atol=1e-6)


def test_an_axis_can_be_one_element_of_an_input() -> None:
    fixed = {"input": torch.zeros(3), "target": 0}
    surface = unstuck.surface(F.cross_entropy, ("input[0]", -3, 3), ("input[2]", -3, 3), fixed=fixed, points=9)
    scores = torch.tensor([surface.axes[0].points[1], 0.0, surface.axes[1].points[7]])
    assert surface.value[1, 7] == pytest.approx(float(F.cross_entropy(scores, torch.tensor(0))), abs=1e-5)


def test_double_precision_on_request() -> None:
    def dtype_of(x: Tensor) -> Tensor:
        return x * (2.0 if x.dtype == torch.float64 else 1.0)

    assert unstuck.surface(dtype_of, ("x", 0, 1), dtype="float64").value[-1] == 2
    assert unstuck.surface(dtype_of, ("x", 0, 1), dtype=torch.float32).value[-1] == 1


def test_a_loss_that_raises_on_a_part_of_the_grid() -> None:
    surface = unstuck.surface(F.binary_cross_entropy, ("input", -1, 1), fixed={"target": 1.0}, points=101)
    assert np.isnan(surface.value[:50]).all()
    assert np.isfinite(surface.value[51:]).all()
    assert any("raises at 50% of the points: RuntimeError" in note for note in surface.notes)
    assert "S05" not in {finding.code for finding in surface.findings}


def test_a_loss_that_draws_random_numbers_leaves_the_generator_alone() -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    surface = unstuck.surface(lambda x: x * torch.randn(()), ("x", -1, 1), points=9)
    assert torch.equal(state, torch.get_rng_state())
    assert any("different values for the same input" in note for note in surface.notes)


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (lambda x, y: x**2, "does not depend on y here"),
        (lambda x, y: torch.stack([x, y]), "returns 2 numbers for one point; their mean is shown"),
        (lambda x, y: (x + y).round().detach(), "has no gradient: nothing in it connects"),
        (lambda x, y: x * float("nan"), "is finite nowhere on this plane"),
        (branching, "works neither on a batch nor under vmap"),
    ],
)
def test_oddities_are_said_and_the_rest_is_shown(loss: Any, sentence: str) -> None:
    surface = draw(loss)
    assert any(sentence in note for note in surface.notes), surface.notes
    assert surface.value.shape == (7, 5)


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (lambda x, y: {"loss": x}, "returns a dict, where a loss returns a tensor"),
        (lambda x, y: torch.zeros(3)[x], "cannot be evaluated, not at"),
        (3, "int is an int, not something to call"),
        (nn.Linear, "Linear cannot be built without arguments"),
        (lambda x: x, "has no 2 free inputs for the axes x, y"),
    ],
)
def test_what_cannot_be_drawn_is_a_sentence(loss: Any, sentence: str) -> None:
    with pytest.raises(SurfaceError, match=sentence):
        draw(loss)


def test_a_slow_loss_gets_a_coarser_grid_and_says_so() -> None:
    surface = unstuck.surface(lambda x: x**2 if x > 0 else -x, ("x", -1, 1), points=8000)
    assert surface.value.shape == (6400,)
    assert "6400 points per axis" in surface.notes[0]


def test_components_are_evaluated_on_the_same_grid() -> None:
    surface = draw(smooth, components={"pull": lambda x, y: F.softplus(y - x), "decay": lambda x: 0.1 * x**2})
    assert set(surface.components) == {"pull", "decay"}
    np.testing.assert_allclose(sum(surface.components.values()), surface.value, atol=1e-6)
