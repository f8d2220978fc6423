import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.l = nn.Linear(4, n)

    def forward(self, x):
        return self.l(x)


model = Net(2)
optimizer = torch.optim.Adam(model.parameters())
model = Net(3)  # finding: params-not-in-optimizer
for i in range(10):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(torch.randn(2, 4)), torch.randint(0, 3, (2,)))
    loss.backward()
    optimizer.step()
