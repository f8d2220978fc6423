"""The discriminator and its loss are built for the same end by an argument of each."""

import torch
import torch.nn.functional as F
from torch import nn


class Discriminator(nn.Sequential):
    def __init__(self, sigmoid=True):
        last = nn.Sequential(nn.Linear(8, 1), nn.Sigmoid()) if sigmoid else nn.Linear(8, 2)
        super().__init__(nn.Linear(4, 8), nn.ReLU(), last)


class AdversarialLoss(nn.Module):
    def __init__(self, discriminator, sigmoid=True):
        super().__init__()
        self.discriminator = discriminator
        self.sigmoid = sigmoid

    def forward(self, x, source):
        d = self.discriminator(x)
        if self.sigmoid:
            return F.binary_cross_entropy(d, source.float().unsqueeze(1))
        else:
            return F.cross_entropy(d, source)


discriminator = Discriminator()
adversarial = AdversarialLoss(discriminator)
optimizer = torch.optim.SGD(discriminator.parameters(), lr=0.1)
for step in range(100):
    optimizer.zero_grad()
    adversarial(torch.randn(8, 4), torch.randint(0, 2, (8,))).backward()
    optimizer.step()
