from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

BROKEN = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return torch.softmax(self.head(x), dim=1)

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for step in range(30):
    loss = criterion(model(torch.randn(16, 8)), torch.randint(3, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
FIXED = BROKEN.replace("torch.softmax(self.head(x), dim=1)", "self.head(x)")

Unstuck = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def broken() -> Path:
    Path("train.py").write_text(BROKEN)
    return Path("train.py")


@pytest.fixture
def fixed() -> Path:
    Path("good.py").write_text(FIXED)
    return Path("good.py")


@pytest.fixture
def unstuck() -> Unstuck:
    """The command as a user types it, with internal errors swallowed as for a user."""

    def command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if name != "UNSTUCK_RAISE"}
        return subprocess.run(
            [sys.executable, "-m", "unstuck", *words],
            env={**variables, "COLUMNS": "80", **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=120,
        )

    return command
