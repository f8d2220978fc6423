"""Functional dropout whose share or whose call somebody chooses: by the mode, by a flag, by the caller."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)
        self.p = 0.5

    def forward(self, x, drop=False, deterministic=True, rate=0.0):
        p = self.p if self.training else 0.0
        x = F.dropout(self.first(x), p)
        x = F.dropout(x, 0.5 if self.training else 0.0)
        x = F.dropout(x, p=self.p * self.training)
        x = F.dropout(x, rate)
        if drop:
            x = F.dropout(x, 0.5)
        if not deterministic:
            x = F.dropout(x, self.p)
        return self.last(x)


def fit(loader):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x, drop=True, deterministic=False), y).backward()
        optimizer.step()
