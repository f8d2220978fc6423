import torch
from torch import nn


class Ensemble(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.members = [nn.Linear(4, 1) for _ in range(n)]

    def forward(self, x):
        return torch.stack([m(x) for m in self.members]).mean(0)


ens = Ensemble(3)
params = [p for m in ens.members for p in m.parameters()]
opt = torch.optim.Adam(params)
for i in range(3):
    opt.zero_grad()
    ens(torch.randn(2, 4)).pow(2).mean().backward()
    opt.step()
