import torch
from torch import nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 4, 3)

    def forward(self, x):
        x = F.relu(self.c1(x))
        x = x.view(x.size(0), -1)
        fc = nn.Linear(x.size(1), 10)  # finding: params-not-in-optimizer
        x = fc(x)
        return x


m = Net()
opt = torch.optim.Adam(m.parameters())
for i in range(10):
    opt.zero_grad()
    F.cross_entropy(m(torch.randn(2, 1, 8, 8)), torch.randint(0, 10, (2,))).backward()
    opt.step()
