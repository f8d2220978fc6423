"""What a record tells of calls of loss functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from unstuck.capture.detect.graph import made_by
from unstuck.capture.observers.losses import NAMES, gradient_kept
from unstuck.events import LossCall

LOGITS = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 3, 1, 2, 2, 0])


def naive_share(logits: torch.Tensor, labels: torch.Tensor, **options: int) -> float:
    """The same share by autograd."""
    z = logits.clone().double().requires_grad_()
    (right,) = torch.autograd.grad(F.cross_entropy(z, labels, **options), z)
    (doubled,) = torch.autograd.grad(F.cross_entropy(z.softmax(1), labels, **options), z)
    return float(doubled.norm() / right.norm())


@pytest.mark.parametrize("shape", [(6, 4), (2, 4, 3), (2, 4, 3, 5)])
def test_the_gradient_kept_equals_what_autograd_says(shape):
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(shape, generator=generator) * 2
    labels = torch.randint(0, 4, (shape[0], *shape[2:]), generator=generator)
    labels.view(-1)[0] = -100
    assert gradient_kept(logits.softmax(1), labels) == pytest.approx(naive_share(logits, labels), rel=1e-4)


def test_an_ignored_class_of_ones_own():
    share = gradient_kept(LOGITS.softmax(1), LABELS, ignored=2)
    assert share == pytest.approx(naive_share(LOGITS, LABELS, ignore_index=2), rel=1e-4)


def test_a_softmax_before_cross_entropy_is_seen_through_reshapes(recorded):
    def train():
        logits = LOGITS.clone().requires_grad_()
        probabilities = logits.softmax(1).view(2, 3, 4).transpose(0, 1).transpose(0, 1).reshape(6, 4).float()
        nn.CrossEntropyLoss()(probabilities[:, :], LABELS).backward()

    (call,) = recorded(train).of(LossCall)
    assert call.input
    assert call.target
    assert (call.loss, call.input.made_by, call.input.sums_to_one) == (
        "cross_entropy",
        "SoftmaxBackward0",
        True,
    )
    assert call.gradient_kept == pytest.approx(naive_share(LOGITS, LABELS), rel=1e-4)
    assert call.value == pytest.approx(F.cross_entropy(LOGITS.softmax(1), LABELS).item())
    assert call.place
    assert call.place.path.endswith("test_loss_calls.py")


@pytest.mark.parametrize(
    ("make", "node"), [(lambda z: z.log_softmax(1), "LogSoftmaxBackward0"), (lambda z: z * 2, "MulBackward0")]
)
def test_other_inputs_are_not_taken_for_a_softmax(recorded, make, node):
    def train():
        F.cross_entropy(make(LOGITS.clone().requires_grad_()), LABELS)

    (call,) = recorded(train).of(LossCall)
    assert call.input
    assert (call.input.made_by, call.input.sums_to_one, call.gradient_kept) == (node, False, None)


def test_evaluation_is_told_as_such(recorded):
    def train():
        with torch.no_grad():
            F.cross_entropy(LOGITS.softmax(1), LABELS)

    (call,) = recorded(train).of(LossCall)
    assert call.input
    assert (call.output_requires_grad, call.input.requires_grad, call.input.sums_to_one) == (
        False,
        False,
        True,
    )


def test_every_loss_is_watched_through_its_module_too(recorded):
    p, q = torch.rand(3, 2), torch.rand(3, 2)

    def train():
        for kind in (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss):
            kind()(p, q)
        nn.KLDivLoss(reduction="batchmean")(p.log(), q)
        nn.GaussianNLLLoss()(p, q, torch.ones(3, 2))
        nn.NLLLoss()(LOGITS.log_softmax(1), LABELS)
        nn.CrossEntropyLoss(reduction="none")(LOGITS, LABELS)

    calls = list(recorded(train).of(LossCall))
    assert {call.loss for call in calls} == set(NAMES)
    assert len(calls) == len(NAMES)
    assert calls[-1].value is None


def test_a_loss_that_raises_passes_on(recorded):
    def train():
        F.cross_entropy(LOGITS, LABELS + 10)

    record = recorded(train, raises=IndexError)
    assert not list(record.of(LossCall))
    assert record.crash
    assert record.crash.kind == "IndexError"


def test_made_by_without_history():
    assert made_by(LOGITS) == ""
