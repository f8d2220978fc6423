import torch
from torch import nn


class Heads(nn.Module):
    def __init__(self, tasks):
        super().__init__()
        self.trunk = nn.Linear(4, 8)
        self.heads = {t: nn.Linear(8, 2) for t in tasks}  # finding: params-not-in-optimizer

    def forward(self, x, task):
        return self.heads[task](torch.relu(self.trunk(x)))


m = Heads(["a", "b"])
opt = torch.optim.Adam(m.parameters())
for i in range(10):
    opt.zero_grad()
    m(torch.randn(2, 4), "a").pow(2).mean().backward()
    opt.step()
