"""What a record tells of evaluations in which the program computes no loss of torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from unstuck.events import Evaluated

X = torch.randn(256, 4, generator=torch.Generator().manual_seed(1))
W = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))


def program(targets: torch.Tensor, cost, outputs: int, seen: list[float], dictionary: bool = False):
    def collate(rows):
        xs, ys = (torch.stack(column) for column in zip(*rows, strict=True))
        return {"x": xs, "label": ys}

    def train() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, outputs))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        options = {"collate_fn": collate} if dictionary else {}
        train_loader = DataLoader(TensorDataset(X[:192], targets[:192]), 32, shuffle=True, **options)
        valid_loader = DataLoader(TensorDataset(X[192:], targets[192:]), 32, **options)
        for _ in range(4):
            model.train()
            for batch in train_loader:
                x, y = batch.values() if dictionary else batch
                optimizer.zero_grad()
                cost(model(x), y).backward()
                optimizer.step()
            model.eval()
            right = 0
            with torch.no_grad():
                for batch in train_loader:
                    x, y = batch.values() if dictionary else batch
                    model(x)
                answers = []
                for batch in valid_loader:
                    x, y = batch.values() if dictionary else batch
                    answers.append(model(x))
                    if outputs == 3:
                        right += (answers[-1].argmax(1) == y).sum().item()
            seen.append(right / 64 if outputs == 3 else torch.cat(answers))

    return train


@pytest.mark.parametrize("dictionary", [False, True])
def test_the_share_right_is_that_of_the_loader_which_is_not_trained_on(recorded, dictionary):
    seen: list = []
    found = list(recorded(program((X @ W).argmax(1), F.cross_entropy, 3, seen, dictionary)).of(Evaluated))
    assert [event.accuracy for event in found] == pytest.approx(seen)
    assert {(event.examples, event.classes, event.value, event.training_mode) for event in found} == {
        (64, 3, None, False)
    }


def test_the_share_of_variance_explained(recorded):
    seen: list = []
    targets = (X @ W)[:, :1]
    found = list(recorded(program(targets, F.mse_loss, 1, seen)).of(Evaluated))
    wanted = [1 - float(F.mse_loss(answers, targets[192:]) / targets[192:].var(correction=0)) for answers in seen]
    assert [event.explained for event in found] == pytest.approx(wanted, abs=1e-4)


def test_targets_made_from_something_else_are_not_guessed(recorded):
    seen: list = []
    found = recorded(program((X @ W).argmax(1), lambda p, y: F.cross_entropy(p, (y + 1) % 3), 3, seen)).of(Evaluated)
    assert not list(found)


def test_a_loss_that_trains_a_head_on_answers_without_gradients_is_no_evaluation(recorded):
    def train() -> None:
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(X), (X @ W).argmax(1)).backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                features = model(X)
            model.train()
            head = torch.zeros(3, 3, requires_grad=True)
            F.cross_entropy(features @ head, (X @ W).argmax(1)).backward()

    assert not list(recorded(train).of(Evaluated))
