"""Sigmoids that are right: clamped for BCELoss, a relativistic difference, an optional one, one for evaluation only."""

import torch
from torch import nn
from torch.nn import functional as F


def mlp(sizes, sigmoid):
    layers = []
    for i in range(len(sizes) - 1):
        layers.append(nn.Linear(sizes[i], sizes[i + 1]))
        if i < len(sizes) - 2:
            layers.append(nn.Sigmoid())
    if sigmoid:
        layers.append(nn.Sigmoid())
    return nn.Sequential(*layers)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 1))

    def forward(self, x):
        score = self.net(x)
        return score if self.training else torch.sigmoid(score)


def relativistic(d, real, fake):
    return F.binary_cross_entropy_with_logits(torch.sigmoid(d(real)) - d(fake), torch.ones(len(real), 1))


def train(args, loader):
    net = mlp([8, 16, 1], args.sigmoid)
    d = Discriminator()
    optimizer = torch.optim.Adam([*net.parameters(), *d.parameters()], lr=1e-3)
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(net(x), y)
        loss = loss + F.binary_cross_entropy_with_logits(d(x), y) + relativistic(d, x, net(x))
        loss = loss + F.binary_cross_entropy(torch.sigmoid(d(x)).clamp(1e-6, 1 - 1e-6), y)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for x, y in loader:
            print(F.binary_cross_entropy(torch.sigmoid(net(x)), y).item())
