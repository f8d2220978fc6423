from __future__ import annotations

from pathlib import Path

import pytest

PROJECT = {
    "train.py": """\
import torch
import torch.nn.functional as F
from model import Net
from losses import compute

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    x, y = torch.randn(16, 8), torch.randint(3, (16,))
    loss = compute(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "model.py": """\
from torch import nn
from layers.head import Head


class Net(Head):
    pass
""",
    "layers/__init__.py": "",
    "layers/head.py": """\
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(x).softmax(1)
""",
    "losses.py": """\
import torch.nn.functional as F


def compute(scores, labels):
    return F.cross_entropy(scores, labels)
""",
}


def write(files: dict[str, str], folder: Path = Path()) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project whose one mistake is spread over three files, as the current directory."""
    monkeypatch.chdir(tmp_path)
    write(PROJECT)
    return tmp_path


@pytest.fixture(autouse=True)
def always_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache also what is small."""
    monkeypatch.setattr("unstuck.lint.engine.WORTH_A_CACHE", 0)
