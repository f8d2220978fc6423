import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, d, p):
        super().__init__()
        self.l = nn.Linear(d, d)
        self.p = p

    def forward(self, x):
        if self.training and self.p:
            k = (torch.rand(len(x), 1) > self.p).float()
            return x + k * F.relu(self.l(x)) / (1 - self.p)
        return x + F.relu(self.l(x))


m = nn.Sequential(nn.Linear(8, 32), *[Block(32, 0.1 * i) for i in range(5)], nn.Linear(32, 3))
x = torch.randn(600, 8)
y = x[:, :3].argmax(1)
opt = torch.optim.Adam(m.parameters(), 3e-3)
for _i in range(200):
    r = torch.randint(600, (64,))
    loss = F.cross_entropy(m(x[r]), y[r])
    opt.zero_grad()
    loss.backward()
    opt.step()
