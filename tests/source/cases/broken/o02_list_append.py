import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.hidden = []  # finding: params-not-in-optimizer
        for a, b in zip(sizes, sizes[1:]):
            self.hidden.append(nn.Linear(a, b))
        self.out = nn.Linear(sizes[-1], 1)

    def forward(self, x):
        for l in self.hidden:
            x = torch.relu(l(x))
        return self.out(x)


m = MLP([4, 8, 8])
opt = torch.optim.Adam(m.parameters())
for i in range(10):
    opt.zero_grad()
    m(torch.randn(2, 4)).pow(2).mean().backward()
    opt.step()
