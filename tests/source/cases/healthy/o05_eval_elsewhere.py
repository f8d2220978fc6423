"""A helper that cannot be read gets the model in a list before every evaluation."""

import torch
import torch.nn.functional as F
from torch import nn

from helpers import set_eval

net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def fit(loader):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()


def test(loader):
    set_eval([net])
    with torch.no_grad():
        for x, y in loader:
            print(F.cross_entropy(net(x), y).item())
