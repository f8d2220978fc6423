import torch
from torch import nn


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(1, 4)

    def forward(self, x):
        return self.net(x)


class Large(Small):
    def __init__(self, size):
        super().__init__()
        self.net = nn.Linear(size, 4)


class Grouped(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.parts = nn.ModuleList()
        for size in sizes:
            if size == 1:
                part = Small()
            else:
                part = Large(size)
            self.parts.append(part)

    def forward(self, groups):
        return torch.stack([part(x) for x, part in zip(groups, self.parts)]).sum()


model = Grouped([1, 3])
optimizer = torch.optim.Adam(model.parameters())
for step in range(5):
    loss = model([torch.randn(2, 1), torch.randn(2, 3)])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
