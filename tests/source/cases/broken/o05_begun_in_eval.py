"""eval() before the training of a new model, and no train() anywhere."""

import torch
import torch.nn.functional as F
from torch import nn

net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
net.eval()  # finding: wrong-mode
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()


for _ in range(3):
    train([(torch.randn(4, 3), torch.zeros(4, dtype=torch.long))])
