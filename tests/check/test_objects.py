"""`unstuck.check` on live objects."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import unstuck


def objects(*extra: object) -> dict[str, object]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), *extra)
    return {
        "model": model,
        "loss_fn": torch.nn.CrossEntropyLoss(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "batch": (torch.randn(8, 4), torch.randint(3, (8,))),
    }


def test_a_broken_setup_is_found_and_can_be_printed() -> None:
    report = unstuck.check(**objects(torch.nn.Softmax(dim=1)))
    assert [diagnosis.lead.code for diagnosis in report.diagnoses] == ["O12"]
    assert not report.ok
    assert str(report).startswith("error O12 double-softmax: ")
    assert repr(report) == "<unstuck.check: O12>"


def test_a_healthy_setup_is_ok() -> None:
    report = unstuck.check(**objects())
    assert report.ok
    assert report.diagnoses == ()
    assert str(report).startswith("Nothing found in one training step on one batch; ")
    assert repr(report) == "<unstuck.check: nothing found in one training step on one batch>"


def test_without_an_optimizer_no_step_is_claimed() -> None:
    given = {**objects(), "optimizer": None}
    assert str(unstuck.check(**given)).startswith("Nothing found in one forward and backward pass on one batch; ")


def test_a_model_alone_is_enough() -> None:
    report = unstuck.check(torch.nn.Linear(2, 2))
    assert report.ok
    assert str(report).startswith("Nothing found in the objects as they are, without a step; ")


@pytest.mark.parametrize(
    ("loss_fn", "optimizer", "sentence"),
    [
        (nn.CrossEntropyLoss(), (torch.randn(4, 3), torch.zeros(4)), "optimizer must be a torch.optim.Optimizer"),
        (nn.CrossEntropyLoss(), "adam", "optimizer must be a torch.optim.Optimizer"),
        (nn.CrossEntropyLoss(), 0.1, "optimizer must be a torch.optim.Optimizer"),
        (nn.CrossEntropyLoss, None, r"loss_fn is the class CrossEntropyLoss; make one of it: CrossEntropyLoss\(\)"),
        ("ce", None, r"loss_fn must be a function of \(output, target\)"),
    ],
)
def test_a_wrong_argument_is_one_sentence(loss_fn: object, optimizer: object, sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        unstuck.check(nn.Linear(3, 2), loss_fn, optimizer)


def test_what_was_not_given_was_not_checked() -> None:
    alone = unstuck.check(nn.Linear(4, 3)).verdict
    unchecked = " ".join(alone.not_checked)
    assert all(code in unchecked for code in ("M10", "O02", "O06", "O10", "O11", "O17", "O03", "R09"))
    model = nn.Linear(4, 3)
    given = unstuck.check(model, None, torch.optim.SGD(model.parameters(), lr=0.1)).verdict
    assert not any("O10" in line for line in given.not_checked)
