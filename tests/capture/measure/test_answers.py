"""What a record tells of the worth of answers: what they cost, and what a constant answer would cost."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unstuck.events import Scored

X = torch.randn(256, 4, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 2, 3]).repeat(32)
ENTROPY = 0.5 * math.log(2) + 0.25 * math.log(4) + 2 * 0.125 * math.log(8)


def best_constant(cost, size: int, start: float = 0.0) -> float:
    """The cost of the best constant answer, found by descent."""
    answer = torch.full((size,), start, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([answer], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cost(answer)
        loss.backward()
        return loss

    optimizer.step(closure)
    return float(cost(answer))


def scores(recorded, outputs: int, cost, targets: Tensor, steps: int = 20, batch: int = 64) -> list[Scored]:
    def train() -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, outputs)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for step in range(steps):
            rows = slice(step * batch % 256, step * batch % 256 + batch)
            optimizer.zero_grad()
            loss = cost(model(X[rows]), targets[rows])
            (loss.mean() if loss.dim() else loss).backward()
            optimizer.step()

    return list(recorded(train).of(Scored))


WEIGHTS = torch.tensor([1.0, 2.0, 4.0, 0.5])
VALUES = torch.randn(256, 3, generator=torch.Generator().manual_seed(2)) * torch.tensor([1.0, 5.0, 0.1]) + 3
YES = (torch.rand(256, 2, generator=torch.Generator().manual_seed(3)) < torch.tensor([0.1, 0.6])).float()
FRAMES = torch.cat([YES, YES], 1)
SOFT = torch.randn(256, 4, generator=torch.Generator().manual_seed(4)).softmax(1)


@pytest.mark.parametrize(
    ("outputs", "cost", "targets"),
    [
        (4, F.cross_entropy, LABELS),
        (4, lambda p, y: F.cross_entropy(p, y, weight=WEIGHTS.to(p)), LABELS),
        (4, lambda p, y: F.cross_entropy(p, y, label_smoothing=0.1), LABELS),
        (4, lambda p, y: F.cross_entropy(p, y, ignore_index=0), LABELS),
        (4, lambda p, y: F.nll_loss(p.log_softmax(1), y), LABELS),
        (4, F.cross_entropy, SOFT),
        (2, F.binary_cross_entropy_with_logits, YES),
        (2, lambda p, y: F.binary_cross_entropy(p.sigmoid(), y), YES),
        (2, lambda p, y: F.binary_cross_entropy_with_logits(p, y, pos_weight=torch.tensor(9.0)), YES),
        (
            4,
            lambda p, y: F.binary_cross_entropy_with_logits(
                p.reshape(-1, 2, 2), y.reshape(-1, 2, 2), pos_weight=torch.tensor([9.0, 3.0])
            ),
            FRAMES,
        ),
        (3, F.mse_loss, VALUES),
        (3, F.l1_loss, VALUES),
        (3, F.smooth_l1_loss, VALUES),
        (3, lambda p, y: F.huber_loss(p, y, delta=0.5), VALUES),
        (4, lambda p, y: F.kl_div(p.log_softmax(1), y, reduction="batchmean"), SOFT),
    ],
)
def test_the_guess_is_what_the_best_constant_answer_costs(recorded, outputs, cost, targets):
    found = scores(recorded, outputs, cost, targets)
    assert len(found) == 20

    def of_all(answer: Tensor) -> Tensor:
        wide = targets.double() if targets.is_floating_point() else targets
        return cost(answer.expand(256, outputs), wide)

    best = best_constant(of_all, outputs, start=3.0 if targets is VALUES else 0.0)
    guess = [score.guess for score in found if score.guess is not None][-1]
    assert guess == pytest.approx(best, rel=0.03)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("loss", "outputs", "targets"), [("cross_entropy", 4, LABELS), ("mse_loss", 3, VALUES)])
def test_the_cost_is_that_of_one_target_however_it_is_reduced(recorded, loss, outputs, targets, reduction):
    def cost(prediction: Tensor, target: Tensor) -> Tensor:
        return getattr(F, loss)(prediction, target, reduction=reduction)

    found = scores(recorded, outputs, cost, targets, steps=1)
    plain = scores(recorded, outputs, getattr(F, loss), targets, steps=1)
    assert found[0].cost == pytest.approx(plain[0].cost, rel=1e-4)
    assert found[0].cost is not None


def test_the_share_right_and_that_of_the_most_frequent_class(recorded):
    last = scores(recorded, 4, F.cross_entropy, LABELS)[-1]
    assert last.right is not None
    assert last.labels == 64
    assert last.guess_right == pytest.approx(0.5)
    assert last.guess == pytest.approx(ENTROPY, rel=0.01)


def test_columns_have_constants_of_their_own(recorded):
    last = scores(recorded, 3, F.mse_loss, VALUES)[-1]
    assert last.guess == pytest.approx(float(VALUES.var(0, correction=0).mean()), rel=1e-3)


@pytest.mark.parametrize("targets", [torch.zeros(256, dtype=torch.int64), torch.ones(256, 4)])
def test_targets_that_are_all_the_same_have_no_guess_to_beat(recorded, targets):
    cost = F.mse_loss if targets.is_floating_point() else F.cross_entropy
    assert {score.guess for score in scores(recorded, 4, cost, targets)} == {None}


def test_too_few_labels_for_their_classes_give_no_guess(recorded):
    labels = torch.arange(256)
    assert {score.guess for score in scores(recorded, 256, F.cross_entropy, labels)} == {None}


def test_what_has_no_gradient_is_not_scored(recorded):
    def evaluate() -> None:
        F.mse_loss(X, X + 1)

    assert not list(recorded(evaluate).of(Scored))


ROWS = torch.arange(64)


@pytest.mark.parametrize(
    ("outputs", "cost", "like", "targets"),
    [
        (3, lambda p, y: ((p - y) ** 2).mean(), F.mse_loss, VALUES),
        (3, lambda p, y: ((y - p) ** 2).sum(1).mean(), F.mse_loss, VALUES),
        (3, lambda p, y: 0.5 * (p - y).pow(2).mean() + 0.1, F.mse_loss, VALUES),
        (3, lambda p, y: (p - y).abs().mean(), F.l1_loss, VALUES),
        (1, lambda p, y: ((p.squeeze(1) - y) ** 2).mean(), lambda p, y: F.mse_loss(p[:, 0], y), VALUES[:, 0]),
        (4, lambda p, y: -p.log_softmax(1)[ROWS, y].mean(), F.cross_entropy, LABELS),
        (4, lambda p, y: -p.log_softmax(1).gather(1, y[:, None]).mean(), F.cross_entropy, LABELS),
        (4, lambda p, y: (-torch.log(p.softmax(1)[ROWS, y] + 1e-9)).sum() / 64, F.cross_entropy, LABELS),
    ],
)
def test_losses_written_out_are_scored_as_those_of_torch(recorded, outputs, cost, like, targets):
    found, wanted = scores(recorded, outputs, cost, targets, 1), scores(recorded, outputs, like, targets, 1)
    assert [score.loss for score in found] == [score.loss for score in wanted]
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.cost == pytest.approx(theirs.cost, rel=1e-3)
        assert mine.guess == pytest.approx(theirs.guess, rel=1e-3)
        assert (mine.right, mine.guess_right) == (theirs.right, theirs.guess_right)


def test_a_difference_of_a_column_and_a_row_has_the_targets_of_the_row(recorded):
    (found,) = scores(recorded, 1, lambda p, y: ((p - y) ** 2).mean(), VALUES[:, 1], 1)
    assert found.guess == pytest.approx(float(VALUES[:64, 1].var(correction=0)), rel=1e-3)


@pytest.mark.parametrize(
    "cost",
    [
        lambda p, y: (p**2).mean(),
        lambda p, y: ((p - p.detach().roll(1)) ** 2).mean() * 0 + ((p * 2 - y) ** 2).mean(),
        lambda p, y: (p.log_softmax(1)[ROWS, 0 * LABELS[:64]] * y[:, 0]).mean(),
    ],
)
def test_what_compares_otherwise_is_left_alone(recorded, cost):
    found = scores(recorded, 3, cost, VALUES, 1)
    assert [score for score in found if score.loss == "cross_entropy" or score.labels == 64 * 64] == []
