"""A switch of the model is set by its name."""

import torch
from torch import nn
from torch.nn import functional as F


class Head(nn.Module):
    def __init__(self, probabilities=True):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.probabilities = probabilities

    def forward(self, x):
        x = self.linear(x)
        if self.probabilities:
            x = torch.softmax(x, 1)
        return x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = Head()

    def forward(self, x):
        return self.head(x)


def configure(model, name="probabilities"):
    setattr(model.head, name, False)


model = Model()
configure(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
