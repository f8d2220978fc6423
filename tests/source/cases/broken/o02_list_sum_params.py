import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.l = nn.Linear(4, n)

    def forward(self, x):
        return self.l(x)


a, b = Net(4), Net(4)
c = Net(4)  # finding: params-not-in-optimizer
opt = torch.optim.Adam(list(a.parameters()) + list(b.parameters()))
for i in range(10):
    opt.zero_grad()
    loss = c(b(a(torch.randn(2, 4)))).pow(2).mean()
    loss.backward()
    opt.step()
