"""Nothing but __init__ sets the switch; what other code sets or reads by name does not matter."""

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
            x = torch.softmax(x, 1)  # finding: double-softmax
        return x

    def __repr__(self):
        return "Head({probabilities})".format(**self.__dict__)


class Other:
    def __init__(self, probabilities):
        self.probabilities = probabilities
        setattr(self, "name", "other")


model = Head()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print(vars(Other(False)))
for _ in range(10):
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
