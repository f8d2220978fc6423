import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, parent):
        super().__init__()
        self.parent = parent
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block(self)

    def forward(self, x):
        return self.block(x)


m = Net()
opt = torch.optim.Adam(m.parameters())
for i in range(3):
    opt.zero_grad()
    m(torch.randn(2, 4)).mean().backward()
    opt.step()
