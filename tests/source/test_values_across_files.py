"""The last operation of a model stands in model.py, its loss in losses.py, and the loop in train.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from unstuck.findings import Finding
from unstuck.judge import judge
from unstuck.source import read_script

MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return {output}
"""
LOSSES = """
import torch.nn.functional as F


class Criterion:
    def __call__(self, prediction, target):
        return {loss}
"""
TRAIN = """
import torch
from losses import Criterion
from model import Net

torch.manual_seed(0)
net, criterion = Net(), Criterion()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(100):
    x, y = torch.randn(4, 8), torch.randint(0, 3, (4,))
    optimizer.zero_grad()
    criterion(net(x), y).backward()
    optimizer.step()
"""
CASES = {
    "O13": ("torch.sigmoid(self.head(self.body(x)))", "F.binary_cross_entropy_with_logits(prediction, target)",
            "model.py"),
    "O16": ("self.head(self.body(x))", "F.nll_loss(prediction, target)", "losses.py"),
    "M07": ("torch.tanh(self.head(self.body(x)))", "F.cross_entropy(prediction, target)", "model.py"),
    "M08": ("self.head(self.body(x))", "F.cross_entropy(target, prediction)", "losses.py"),
    "G19": ("self.head(self.body(x))", "F.cross_entropy(prediction, target).clamp(max=2.0)", "losses.py"),
    "G15": ("torch.softmax(self.head(self.body(x)), 1).log()", "F.nll_loss(prediction, target)", "model.py"),
}  # fmt: skip


def findings(folder: Path, output: str, loss: str) -> list[Finding]:
    (folder / "model.py").write_text(MODEL.format(output=output), encoding="utf-8")
    (folder / "losses.py").write_text(LOSSES.format(loss=loss), encoding="utf-8")
    train = folder / "train.py"
    train.write_text(TRAIN, encoding="utf-8")
    return [diagnosis.lead for diagnosis in judge(scripts=(read_script(train),)).diagnoses]


@pytest.mark.parametrize("code", CASES)
def test_the_mistake_is_named_in_the_file_where_it_is_written(code: str, tmp_path: Path) -> None:
    output, loss, file = CASES[code]
    (found,) = findings(tmp_path, output, loss)
    assert found.code == code
    assert found.place is not None
    assert Path(found.place.path).name == file


@pytest.mark.parametrize("code", CASES)
def test_no_edit_is_offered_for_another_file(code: str, tmp_path: Path) -> None:
    output, loss, _ = CASES[code]
    assert all(edit.path.endswith("train.py") for found in findings(tmp_path, output, loss) for edit in found.fix.edits)


def test_a_model_and_a_loss_that_fit_are_passed_over(tmp_path: Path) -> None:
    assert findings(tmp_path, "torch.log_softmax(self.head(self.body(x)), 1)", "F.nll_loss(prediction, target)") == []
