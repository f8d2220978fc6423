"""A model whose training is over has no optimizer any more, so its parameters are not left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from unstuck.events import UntrainedGradients
from unstuck.trials.context import Context
from unstuck.trials.runner import Program, Runner, Variant

FOLDS = """
import torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(200, 6)
y = (x[:, 0] > 0).long()
for fold in range(3):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


def test_folds_that_are_over_are_not_untrained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(FOLDS)
    with Runner(Program("train.py"), tmp_path / ".unstuck" / "runs" / "one") as runner:
        (run,) = Context(runner, 60.0).run([Variant("watched", show_data=True)], 100)
    assert not list(run.record().of(UntrainedGradients))
