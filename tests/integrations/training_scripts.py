"""A training script with one mistake, and the same without it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

BROKEN = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return torch.softmax(self.head(x), dim=1)


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

Command = Callable[..., "subprocess.CompletedProcess[str]"]
"""Runs `python -m WORDS`."""
