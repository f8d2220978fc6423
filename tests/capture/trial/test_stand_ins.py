"""Stand-ins: a model of ours learns what there is to learn, data of ours can be learned, and a loss of ours fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unstuck.capture.trial.lab import Lab
from unstuck.capture.trial.stand_ins.fitting import Kind, fit, fitting_loss
from unstuck.capture.trial.stand_ins.networks import Network
from unstuck.experiments.isolate import progress
from unstuck.interventions import Intervention, ScoreAnswers, SwapData, SwapLoss, SwapModel, SwapUpdate, intervene

Batch = Callable[[], tuple[Tensor, Tensor]]


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores, labels)


def yes_or_no(scores: Tensor, target: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(scores, target)


def squares(numbers: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(numbers, target)


@contextmanager
def under(*changes: Intervention) -> Iterator[Lab]:
    lab = intervene((ScoreAnswers(), *changes))
    try:
        yield lab
    finally:
        lab.undo()


def trained(
    model: nn.Module,
    batch: Batch,
    loss: Callable[[Any, Tensor], Tensor],
    *changes: Intervention,
    steps: int = 150,
    rate: float = 1e-3,
) -> dict[str, Any]:
    """The notes of a training under these changes."""
    with under(*changes) as lab:
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        for _ in range(steps):
            inputs, targets = batch()
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()
            lab.step_ended()
    return lab.notes


class Blind(nn.Module):
    """Returns the same for all inputs."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.answer = nn.Parameter(torch.zeros(shape))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.answer.expand(len(inputs), *self.answer.shape)


def tables() -> tuple[Tensor, Tensor]:
    inputs = torch.randn(32, 10)
    return inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()


def images() -> tuple[Tensor, Tensor]:
    labels = torch.randint(3, (32,))
    inputs = torch.rand(32, 1, 16, 16)
    for image, label in zip(inputs, labels.tolist(), strict=True):
        image[:, 5 * label : 5 * label + 4, 2:10] += 1
    return inputs, labels


def texts() -> tuple[Tensor, Tensor]:
    labels = torch.randint(2, (32,))
    inputs = torch.randint(5, 50, (32, 12))
    inputs[:, 3] = 2 + labels
    return inputs, labels


def signals() -> tuple[Tensor, Tensor]:
    labels = torch.randint(2, (32,))
    return torch.randn(32, 24, 3) + labels[:, None, None] * torch.linspace(-1, 1, 24)[None, :, None], labels


def noise_labels(batch: Batch) -> Batch:
    def drawn() -> tuple[Tensor, Tensor]:
        inputs, labels = batch()
        return inputs, labels[torch.randperm(len(labels))]

    return drawn


SLOW = pytest.mark.slow


@pytest.mark.parametrize("batch", [tables, *(pytest.param(each, marks=SLOW) for each in (images, texts, signals))])
def test_our_model_learns_what_is_there_and_nothing_else(batch: Batch) -> None:
    torch.manual_seed(0)
    found = trained(Blind(3), batch, cross_entropy, SwapModel())
    assert found["model"]["why"] == ""
    assert (progress(found["answers"]) or 0.0) > 0.4, found["answers"]
    found = trained(Blind(3), noise_labels(batch), cross_entropy, SwapModel())
    assert (progress(found["answers"]) or 0.0) < 0.1, found["answers"]


def test_our_model_does_not_memorize_its_examples() -> None:
    torch.manual_seed(0)
    inputs, labels = torch.randn(64, 30), torch.randint(2, (64,))
    found = trained(Blind(2), lambda: (inputs, labels), cross_entropy, SwapModel(), steps=300)
    assert found["model"]["held_out"] > 0
    assert (progress(found["answers"]) or 0.0) < 0.15, found["answers"]


def test_our_model_sees_no_later_positions() -> None:
    inputs = torch.randint(20, (4, 9))
    network = Network([inputs], torch.Size((4, 9, 20)))
    changed = inputs.clone()
    changed[:, 6:] = 1
    one, other = (network([each], torch.Size((4, 9, 20))) for each in (inputs, changed))
    assert torch.allclose(one[:, :6], other[:, :6], atol=1e-5)
    assert not torch.allclose(one[:, 6:], other[:, 6:], atol=1e-5)


def learners() -> dict[str, tuple[nn.Module, Batch, Callable[[Any, Tensor], Tensor]]]:
    """Models that can learn, with data that cannot be learned, by their usual losses."""

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Conv2d(3, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU())
            self.head = nn.Linear(32, 7)

        def forward(self, inputs: Tensor) -> Any:
            return self.head(self.layers(inputs).mean((2, 3)))

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vectors, self.inner, self.head = (
                nn.Embedding(60, 32),
                nn.GRU(32, 32, batch_first=True),
                nn.Linear(32, 1),
            )

        def forward(self, inputs: Tensor) -> Any:
            return self.head(self.inner(self.vectors(inputs))[1][-1])[:, 0]

    class Next(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Embedding(30, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 30))

        def forward(self, inputs: Tensor) -> Any:
            return self.layers(inputs)

    pixels = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1))
    mlp = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
    return {
        "linear": (nn.Linear(40, 10), lambda: (torch.rand(32, 40), torch.randint(10, (32,))), cross_entropy),
        "numbers": (mlp, lambda: (torch.randn(32, 6), torch.randn(32, 2)), squares),
        "pooled": (Pooled(), lambda: (torch.rand(16, 3, 20, 20), torch.randint(7, (16,))), cross_entropy),
        "text": (
            Recurrent(),
            lambda: (torch.randint(60, (32, 15)), torch.randint(2, (32,)).float()),
            yes_or_no,
        ),
        "next": (
            Next(),
            lambda: (torch.randint(30, (8, 20)), torch.randint(30, (8, 20))),
            lambda scores, target: F.cross_entropy(scores.reshape(-1, 30), target.reshape(-1)),
        ),
        "masks": (
            pixels,
            lambda: (torch.rand(8, 1, 16, 16), (torch.rand(8, 1, 16, 16) > 0.5).float()),
            yes_or_no,
        ),
    }


@pytest.mark.parametrize("name", list(learners()))
def test_our_data_can_be_learned(name: str) -> None:
    torch.manual_seed(0)
    model, batch, loss = learners()[name]
    found = trained(model, batch, loss, SwapData(), steps=250, rate=3e-3)
    assert found["data"]["why"] == ""
    assert found["data"]["missed"] == 0
    assert (progress(found["answers"]) or 0.0) > 0.3, found["answers"]


def test_our_data_are_no_help_to_a_model_that_sees_nothing() -> None:
    torch.manual_seed(0)
    found = trained(Blind(3), tables, cross_entropy, SwapData())
    assert (progress(found["answers"]) or 0.0) < 0.1


def test_a_loss_between_outputs_belongs_to_no_target() -> None:
    def contrastive(vectors: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(vectors @ vectors.T, torch.arange(len(vectors)))

    found = trained(nn.Linear(10, 32), tables, contrastive, SwapLoss(), SwapData(), steps=5)
    assert not found["answers"]
    assert found["loss"]["why"]
    assert found["data"]["why"]


def test_the_loss_of_the_wrong_sign_is_replaced() -> None:
    torch.manual_seed(0)
    model = nn.Linear(10, 3)
    found = trained(model, tables, lambda *both: -F.cross_entropy(*both), SwapLoss(), steps=200, rate=1e-2)
    assert found["loss"] == {"swapped": 200, "kind": "classes", "why": ""}
    assert (progress(found["answers"]) or 0.0) > 0.3


def test_our_update_needs_no_clearing_and_reaches_what_no_optimizer_holds() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 3))
    before = [p.detach().clone() for p in model.parameters()]
    with under(SwapUpdate()) as lab:
        optimizer = torch.optim.SGD(model[2].parameters(), lr=1e9)
        for _ in range(200):
            inputs, labels = tables()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            lab.step_ended()
    assert all(0 < float((p.detach() - old).abs().max()) < 1 for p, old in zip(model.parameters(), before, strict=True))
    assert (progress(lab.notes["answers"]) or 0.0) > 0.3


def test_outputs_and_targets_that_fit() -> None:
    scores = torch.randn(12, 4, requires_grad=True)
    classes, one_hot = torch.randint(4, (12,)), F.one_hot(torch.arange(12) % 4, 4).float()
    kinds = [
        (scores, classes, Kind.CLASSES),
        (scores, one_hot, Kind.CLASSES),
        (scores, torch.tensor([[0.0, 1, 1, 0]] * 12), Kind.BINARY),
        (scores, torch.randn(12, 4), Kind.NUMBERS),
        (scores.reshape(3, 4, 4), classes.reshape(3, 4), Kind.CLASSES),
        (scores[:, :1], torch.randint(2, (12,)), Kind.BINARY),
    ]
    for output, target, kind in kinds:
        found = fit(output, target)
        assert found is not None
        assert found.kind is kind
        assert fitting_loss(found).requires_grad
    assert fit(scores, torch.arange(12)) is None, "there are four classes"
    assert fit(scores, torch.randn(12)) is None
    padded = fit(scores, torch.where(torch.arange(12) < 6, classes, -100))
    assert padded is not None
    assert len(padded.target) == 6
    shares = scores.softmax(1)
    found = fit(shares, classes)
    assert found is not None
    assert torch.allclose(fitting_loss(found), F.cross_entropy(scores, classes), atol=1e-4), "no second softmax"
