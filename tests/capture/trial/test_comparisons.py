"""A trial sees how a script judges its model on tensors of its own, without a loader and without a loss."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from unstuck.events import InputsCompared
from unstuck.record.outcome import outcome_of
from unstuck.trials.context import Context
from unstuck.trials.runner import Program, Runner, Variant

SCRIPT = """
    import torch
    from torch import nn
    torch.manual_seed(0)
    x = torch.randn(1200, 12)
    y = {target}
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, {outputs}))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(6):
        model.train()
        for rows in torch.randperm(800).split(40):
            optimizer.zero_grad()
            {loss}(model(x[rows]){column}, y[rows]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            {judged}
"""
RATINGS = """
    import torch
    from torch import nn
    torch.manual_seed(0)
    quality = torch.randn(80)
    items = torch.multinomial(torch.arange(1.0, 81.0), 4000, replacement=True)
    users = torch.randint(0, 5000, (4000,))
    ratings = quality[items] + 0.5 * torch.randn(4000)
    sorted_items, order = items[3000:].sort()
    renumbered = (sorted_items + 1) % 80

    class Ratings(nn.Module):
        def __init__(self):
            super().__init__()
            self.items, self.users = nn.Embedding(80, 1), nn.Embedding(5000, 1)

        def forward(self, item, user):
            return (self.items(item) + self.users(user))[:, 0]

    model = Ratings()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for epoch in range(6):
        for rows in torch.randperm(3000).split(100):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(items[rows], users[rows]), ratings[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            answers = model(renumbered, users[3000:][order]).clamp(-2, 2)
            error = (answers - ratings[3000:][order]).square().mean()
"""
CLASSES = {"target": "(x[:, 0] > 0).long() + (x[:, 1] > 0).long()", "outputs": 3, "column": ""}
CLASSES |= {"loss": "nn.functional.cross_entropy"}
NUMBERS = {"target": "x[:, :3].sum(1)", "outputs": 1, "column": "[:, 0]", "loss": "nn.functional.mse_loss"}


def evaluated(folder: Path, monkeypatch: pytest.MonkeyPatch, judged: str, **parts: object) -> float | None:
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT.format(judged=judged, **parts)))
    with Runner(Program("train.py"), folder / ".unstuck" / "runs" / "one") as runner:
        (run,) = Context(runner, 60.0).run([Variant("watched", show_data=True)], 500)
    outcome = outcome_of(run.record())
    assert outcome is not None
    return outcome.evaluated_right


@pytest.mark.parametrize(
    "judged",
    [
        "right = (model(x[800:]).argmax(1) == y[800:]).float().mean()",
        pytest.param(
            "right = model(x[800:]).argmax(dim=1, keepdim=True).eq(y[800:].view(-1, 1)).sum().item()",
            marks=pytest.mark.slow,
        ),
        pytest.param("right = torch.eq(y[800:], torch.max(model(x[800:]), 1)[1]).sum()", marks=pytest.mark.slow),
    ],
)
def test_classes_that_a_script_compares_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judged: str
) -> None:
    found = evaluated(tmp_path, monkeypatch, judged, **CLASSES)
    assert found is not None
    assert 0.8 < found <= 1


@pytest.mark.slow
def test_numbers_that_a_script_subtracts_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = "error = ((model(x[800:])[:, 0] - y[800:]) ** 2).mean()"
    found = evaluated(tmp_path, monkeypatch, judged, **NUMBERS)
    assert found is not None
    assert 0.8 < found <= 1


def test_answers_brought_into_limits_and_to_ids_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(RATINGS))
    monkeypatch.chdir(tmp_path)
    with Runner(Program("train.py"), tmp_path / ".unstuck" / "runs" / "one") as runner:
        (run,) = Context(runner, 60.0).run([Variant("watched", show_data=True)], 500)
    outcome = outcome_of(run.record())
    assert outcome is not None
    assert outcome.evaluated_right is not None
    found = {event.input: event for event in run.record().of(InputsCompared)}["item"]
    assert found.same_target is not None
    assert found.same_target_within is not None
    assert found.same_target_within > 0.4
    assert abs(found.same_target) < 0.2, "the items of the evaluation have other numbers"
    assert found.alike is not None
    assert found.across is not None
    assert found.across > 0.7 * found.alike, "sorted examples are looked at from their beginning to their end"


@pytest.mark.slow
def test_answers_to_examples_that_were_trained_on_are_not_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = "right = (model(x[:400]).argmax(1) == y[:400]).float().mean()"
    assert evaluated(tmp_path, monkeypatch, judged, **CLASSES) is None
