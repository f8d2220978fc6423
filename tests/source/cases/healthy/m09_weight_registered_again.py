"""A layer whose weight is made anew with the size that is then noted."""

import torch
from torch import nn
from torch.nn import functional as F


def train(loader):
    torch.manual_seed(0)
    layer = nn.Linear(3, 2, bias=False)
    del layer.weight
    layer.register_parameter("weight", nn.Parameter(torch.randn(4, 3)))
    layer.out_features = 4
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(layer(x), y).backward()
        optimizer.step()
