"""Readers in closed form: what they read, and what they must not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unstuck.capture.trial.readers import read, split


def classes(labels: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(labels).float()


def test_a_linear_relation_is_read() -> None:
    torch.manual_seed(0)
    x = torch.randn(400, 10)
    found = read(x, classes(x[:, :3].argmax(1)), split(torch.arange(400), 1))
    assert found.is_readable
    assert found.score > 0.5


def test_a_product_is_read_too() -> None:
    torch.manual_seed(0)
    x = torch.randn(600, 4)
    assert read(x, (x[:, :1] * x[:, 1:2] > 0).float(), split(torch.arange(600), 1)).score > 0.3


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("features", [3, 60, 800])
def test_random_targets_are_not(seed: int, features: int) -> None:
    torch.manual_seed(seed)
    found = read(torch.randn(300, features), classes(torch.randint(4, (300,))), split(torch.arange(300), 1))
    assert not found.is_readable


def test_examples_that_come_twice_are_held_out_together() -> None:
    torch.manual_seed(0)
    x, labels = torch.randn(150, 20), torch.randint(3, (150,))
    both, twice = torch.cat([x, x]), classes(torch.cat([labels, labels]))
    assert not read(both, twice, split(torch.arange(150).repeat(2), 1)).is_readable
    assert read(both, twice, split(torch.arange(300), 1)).is_readable


def test_numbers_that_vary_by_rounding_alone_show_nothing() -> None:
    torch.manual_seed(0)
    labels = torch.randint(2, (300,))
    table = 1000 + 1e-4 * labels[:, None].float() * torch.ones(300, 5)
    assert read(table, classes(labels), split(torch.arange(300), 1)).score == 0


def test_the_closed_form_is_that_of_a_reader_fitted_without_the_fold() -> None:
    torch.manual_seed(0)
    from unstuck.capture.trial.readers import _left_out

    x, y = torch.randn(40, 6, dtype=torch.float64).float(), torch.randn(40, 1)
    gram = x @ x.T
    left = _left_out(gram, 2.0, y, [10, 10, 10, 10])
    assert left is not None
    rest, own = slice(10, 40), slice(0, 10)
    fitted = gram[own, rest] @ torch.linalg.solve(gram[rest, rest] + 2.0 * torch.eye(30), y[rest])
    assert torch.allclose(left[own], y[own] - fitted, atol=1e-3)
