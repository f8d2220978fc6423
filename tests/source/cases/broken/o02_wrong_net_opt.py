import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 2)

    def forward(self, x):
        return self.l(x)


G = Net()  # finding: params-not-in-optimizer
D = Net()
optG = torch.optim.Adam(D.parameters())
optD = torch.optim.Adam(D.parameters())
for i in range(10):
    optD.zero_grad()
    d = D(torch.randn(2, 4)).mean()
    d.backward()
    optD.step()
    optG.zero_grad()
    g = D(torch.cat([G(torch.randn(2, 4)), torch.zeros(2, 2)], 1)).mean()
    g.backward()
    optG.step()
