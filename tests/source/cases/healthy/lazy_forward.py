import torch
from torch import nn


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.fc = None

    def forward(self, x):
        x = self.conv(x).flatten(1)
        if self.fc is None:
            fc = nn.Linear(x.shape[1], 10)
            self.fc = fc.to(x.device)
        return self.fc(x)


m = Lazy()
m(torch.randn(1, 1, 8, 8))
opt = torch.optim.Adam(m.parameters())
for i in range(10):
    opt.zero_grad()
    nn.functional.cross_entropy(m(torch.randn(2, 1, 8, 8)), torch.randint(0, 10, (2,))).backward()
    opt.step()
