"""Where examples of a batch meet, operation by operation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unstuck.capture.places import Places
from unstuck.capture.torch_hooks import hooks
from unstuck.capture.trial.axes.follower import Follower
from unstuck.findings.mixing import Mix

N, T, D = 16, 6, 8
Compute = Callable[[Tensor, Tensor], object]


def mixes(compute: Compute, *shape: int, axis: int = 0) -> list[Mix]:
    """What is found in a computation with `x` of this shape and `y`, one number for each example."""
    torch.manual_seed(0)
    x, y = torch.randn(shape or (N, D)), torch.randn(N)
    follower = Follower(N, axis, Places(), lambda tensor: False)
    leave = hooks.enter(follower)
    try:
        follower.seed(x, axis)
        follower.seed(y, 0)
        compute(x, y)
    finally:
        leave()
    return [one.mix for one in follower.results()]


def certain(compute: Compute, *shape: int, axis: int = 0) -> list[Mix]:
    return [mix for mix in mixes(compute, *shape, axis=axis) if mix is not Mix.OTHER]


@pytest.mark.parametrize(
    ("compute", "shape", "mix"),
    [
        (lambda x, y: x[:, :1] - y, (N, D), Mix.COLUMN),
        (lambda x, y: torch.where(x[:, :1] > 0, y, -y), (N, D), Mix.COLUMN),
        (lambda x, y: x.sum(1, keepdim=True) * y, (N, D), Mix.COLUMN),
        (lambda x, y: x * y, (N, N), Mix.COEFFICIENT),
        (lambda x, y: y.exp() * x + 1, (N, 3, D, N), Mix.COEFFICIENT),
        (lambda x, y: x[:, (y > 0).long()], (N, D), Mix.PICK),
        (lambda x, y: F.softmax(x, dim=0), (N, D), Mix.SOFTMAX),
        (lambda x, y: nn.Linear(T * D, 2)(x.transpose(0, 1).reshape(N, -1)), (N, T, D), Mix.ROWS),
    ],
)
def test_a_mistake_of_axes_has_its_name(compute: Compute, shape: tuple[int, ...], mix: Mix) -> None:
    assert set(certain(compute, *shape)) == {mix}


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, y: (x[:, 0] - y).square().mean(),
        lambda x, y: x[:, None] - x[None, :],
        lambda x, y: y.unsqueeze(1) - x[:, 0],
        lambda x, y: y.view(-1, 1) == y,
        lambda x, y: F.normalize(x) @ F.normalize(x).T,
        lambda x, y: (x - x.mean(0)) / x.std(0),
        lambda x, y: 0.3 * x + 0.7 * x[torch.randperm(N)],
        lambda x, y: nn.BatchNorm1d(D)(x),
        lambda x, y: x.sum(1, keepdim=True) + x.sum(1) - 2 * x @ x.T,
        lambda x, y: F.cross_entropy(x, (y > 0).long()),
        lambda x, y: F.softmax(y, dim=0),
        lambda x, y: x * torch.linspace(0, 1, D),
        lambda x, y: x.view(4, 4, D).mean(1),
        lambda x, y: F.dropout(x, 0.5) * y[:, None],
    ],
)
def test_what_is_meant_is_not_reported(compute: Compute) -> None:
    assert certain(compute) == []


def test_nothing_of_the_batch_statistics_is_seen_later() -> None:
    """A difference after a batch norm is still found."""
    assert Mix.COLUMN in certain(lambda x, y: nn.BatchNorm1d(D)(x)[:, :1] - y)


def test_the_running_statistics_of_a_batch_norm_change_once() -> None:
    one, other = nn.BatchNorm1d(D), nn.BatchNorm1d(D)
    mixes(lambda x, y: one(x))
    torch.manual_seed(0)
    other(torch.randn(N, D))
    assert torch.equal(torch.as_tensor(one.running_mean), torch.as_tensor(other.running_mean))


def test_random_numbers_are_those_of_the_program() -> None:
    drawn: list[Tensor] = []
    mixes(lambda x, y: (F.dropout(x, 0.5), drawn.append(torch.rand(3))))
    torch.manual_seed(0)
    x, _ = torch.randn(N, D), torch.randn(N)
    F.dropout(x, 0.5)
    assert torch.equal(drawn[0], torch.rand(3))


@pytest.mark.parametrize(("first", "found"), [(False, [Mix.SEQUENCE]), (True, [])])
def test_a_layer_that_takes_the_batch_for_time(first: bool, found: list[Mix]) -> None:
    torch.manual_seed(0)
    x = torch.randn(N, T, D)
    follower = Follower(N, 0, Places(), lambda tensor: False)
    leave = hooks.enter(follower)
    try:
        follower.seed(x)
        follower.sequence_layer("rnn", nn.GRU(D, D, batch_first=first), x)
    finally:
        leave()
    assert [one.mix for one in follower.results()] == found
