"""nll_loss as the picker of one number inside a formula that is whole."""

import torch
from torch import nn
from torch.nn import functional as F


def train(loader):
    torch.manual_seed(0)
    net, other, third = nn.Linear(3, 5), nn.Linear(3, 5), nn.Linear(3, 5)
    optimizer = torch.optim.SGD([*net.parameters(), *other.parameters(), *third.parameters()], lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        scores = net(x)
        cross_entropy = F.nll_loss(scores, y) + torch.logsumexp(scores, 1).mean()
        cross_entropy.backward()
        expected_error = 1 + F.nll_loss(F.softmax(other(x), 1), y)
        expected_error.backward()
        optimizer.step()
