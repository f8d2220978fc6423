"""Labels, masks, and numbers at the edge."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from unstuck.helpers import (
    log_space,
    masked_mean,
    per_token_loss,
    pos_weight,
    remap_labels,
    safe_acos,
    safe_divide,
    safe_exp,
    safe_log,
    safe_norm,
    safe_pow,
    safe_sqrt,
)


def test_positives_weigh_as_much_as_negatives() -> None:
    assert float(pos_weight(torch.tensor([1, 0, 0, 0]))) == 3
    columns = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    assert pos_weight(columns).tolist() == pytest.approx([3, 1 / 3])
    functional.binary_cross_entropy_with_logits(torch.randn(4, 2), columns, pos_weight=pos_weight(columns))
    assert pos_weight(columns[:, :1]).shape == (1,)


def test_nothing_to_weigh() -> None:
    with pytest.raises(ValueError, match="all labels are the same"):
        pos_weight(torch.ones(4))
    columns = torch.tensor([[1, 0, 1], [1, 0, 0]])
    with pytest.raises(ValueError, match="In columns 0, 1 all labels are the same"):
        pos_weight(columns)
    assert pos_weight(columns, missing=1.0).tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="no targets"):
        pos_weight(torch.tensor([]))
    with pytest.raises(ValueError, match="0 or 1"):
        pos_weight(torch.tensor([0, 2]))


def test_labels_become_classes() -> None:
    train = torch.tensor([10, -100, 3, 10, 7])
    classes, labels = remap_labels(train)
    assert classes.tolist() == [2, -100, 0, 2, 1]
    assert (len(labels), labels.labels.tolist()) == (3, [3, 7, 10])
    assert labels.apply(torch.tensor([[7, 3], [-100, 10]])).tolist() == [[1, 0], [-100, 2]]
    assert torch.equal(labels.undo(classes), train)
    for stranger in (4, 99, -5):
        with pytest.raises(ValueError, match=f"The label {stranger} was not among those"):
            labels.apply(torch.tensor([3, stranger]))


def test_labels_at_the_edge() -> None:
    assert remap_labels(torch.tensor([5, 5, 5]))[0].tolist() == [0, 0, 0]
    empty, labels = remap_labels(torch.tensor([], dtype=torch.long))
    assert (empty.tolist(), len(labels)) == ([], 0)
    assert remap_labels(torch.tensor([-100, -100]))[0].tolist() == [-100, -100]
    with pytest.raises(ValueError, match="not among those"):
        labels.apply(torch.tensor([1]))
    with pytest.raises(ValueError, match="whole numbers"):
        remap_labels(torch.tensor([1.0, 2.0]))


def test_a_mean_over_what_counts() -> None:
    values = torch.tensor([[1.0, 3.0], [math.nan, 5.0]], requires_grad=True)
    mask = torch.tensor([[1, 1], [0, 0]])
    mean = masked_mean(values, mask)
    assert mean.item() == 2
    mean.backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[0.5, 0.5], [0, 0]]
    assert masked_mean(values.detach(), mask, dim=1).tolist() == [2, 0]
    assert float(masked_mean(torch.tensor([[1.0, 2.0]]), torch.tensor([[True], [True]])[:1])) == 1.5
    assert float(masked_mean(torch.zeros(0), torch.zeros(0))) == 0


def test_a_loss_per_token() -> None:
    logits = torch.randn(2, 3, 5, requires_grad=True)
    targets = torch.tensor([[1, -100, 2], [-100, -100, 4]])
    loss, count = per_token_loss(logits, targets)
    assert int(count) == 3
    assert torch.allclose(loss, functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))
    nothing, none = per_token_loss(logits, torch.full_like(targets, -100))
    nothing.backward()
    assert (nothing.item(), int(none)) == (0, 0)
    assert logits.grad is not None
    assert not logits.grad.any()
    with pytest.raises(ValueError, match=r"need targets of shape \[2, 3\], not \[6\]"):
        per_token_loss(logits, targets.flatten())


CASES: list[tuple[Callable[..., Tensor], Callable[..., Tensor], list[float], list[float]]] = [
    (safe_log, torch.log, [1e-3, 0.5, 1.0, 40.0], [0.0, -1.0, 1e-30]),
    (safe_sqrt, torch.sqrt, [1e-3, 0.5, 1.0, 40.0], [0.0, -1e-9, 1e-30]),
    (safe_exp, torch.exp, [-100.0, 0.0, 1.0, 40.0], [1000.0, 90.0, 1e9]),
    (safe_acos, torch.acos, [-0.9, 0.0, 0.5], [1.0, -1.0, 1.0000001]),
    (lambda x: safe_pow(x, 0.3), lambda x: x.pow(0.3), [1e-3, 1.0, 4.0], [0.0, -1e-9]),
    (lambda x: safe_pow(x, -2), lambda x: x.pow(-2), [1e-3, 1.0, 4.0], [0.0, -1e-9]),
    (lambda x: safe_pow(x, 2), lambda x: x.pow(2), [-2.0, 0.0, 3.0], [0.0]),
    (lambda x: safe_divide(torch.ones_like(x), x), lambda x: 1 / x, [-2.0, 1e-3, 5.0], [0.0, 1e-30, -1e-30]),
    (safe_norm, torch.linalg.vector_norm, [3.0, 4.0, -2.0], [0.0, 0.0]),
    (safe_norm, torch.linalg.vector_norm, [1e-3], [3e30, 4e30]),
]


def with_gradient(function: Callable[..., Tensor], values: list[float]) -> tuple[Tensor, Tensor]:
    x = torch.tensor(values, requires_grad=True)
    y = function(x)
    y.sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


@pytest.mark.parametrize(("safe", "usual", "inside", "edge"), CASES)
def test_exact_inside_and_finite_at_the_edge(
    safe: Callable[..., Tensor], usual: Callable[..., Tensor], inside: list[float], edge: list[float]
) -> None:
    for one, other in zip(with_gradient(safe, inside), with_gradient(usual, inside), strict=True):
        assert torch.allclose(one, other, rtol=1e-5)
    for numbers in with_gradient(safe, edge):
        assert numbers.isfinite().all()


def test_the_edge_still_leads_somewhere() -> None:
    assert with_gradient(safe_log, [0.0, -1.0])[1].min() > 0
    assert with_gradient(safe_sqrt, [0.0])[0].item() == 0
    assert float(safe_divide(torch.tensor(1.0), torch.tensor(-1e-30))) < 0
    assert float(safe_norm(torch.tensor([3e30, 4e30]))) == pytest.approx(5e30)
    assert safe_norm(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), dim=1).tolist() == [5, 0]
    assert safe_norm(torch.ones(2, 4), dim=1, keepdim=True).tolist() == [[2], [2]]
    assert float(safe_norm(torch.zeros(0))) == 0
    assert safe_log(torch.tensor([0.0, 1.0], dtype=torch.float16)).isfinite().all()
    with pytest.raises(ValueError, match="above 0"):
        safe_log(torch.ones(1), eps=0)


def test_a_product_in_log_space_has_independent_gradients() -> None:
    a, b = torch.tensor(3.0, requires_grad=True), torch.tensor(1e-4, requires_grad=True)
    log_space(a, b).backward()
    assert a.grad is not None
    assert b.grad is not None
    assert float(a.grad) == pytest.approx(1 / 3)
    assert float(b.grad) == pytest.approx(1e4)
    assert float(log_space(torch.tensor(-2.0), torch.tensor(4.0))) == pytest.approx(-math.log(8))
    zero = torch.tensor(0.0, requires_grad=True)
    log_space(zero, torch.tensor(2.0)).backward()
    assert zero.grad is not None
    assert 0 < float(zero.grad) < math.inf
    assert float(log_space(torch.tensor(1e-30), torch.tensor(1e30), eps=1e-35)) == pytest.approx(0, abs=1e-4)
    with pytest.raises(ValueError, match="at least one factor"):
        log_space()
