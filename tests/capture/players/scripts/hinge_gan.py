import torch
import torch.nn as nn
import torch.nn.functional as F


class G(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, z):
        return self.f(z)


class D(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(16, 64), nn.LeakyReLU(0.1), nn.Linear(64, 1))

    def forward(self, x):
        return self.f(x).squeeze(1)


torch.manual_seed(1)
W = torch.randn(4, 16)
g, d = G(), D()
og = torch.optim.Adam(g.parameters(), 5e-4, betas=(0.5, 0.9))
od = torch.optim.Adam(d.parameters(), 5e-4, betas=(0.5, 0.9))
for _ in range(400):
    x = torch.randn(64, 4) @ W
    f = g(torch.randn(64, 10))
    ld = F.relu(1 - d(x)).mean() + F.relu(1 + d(f.detach())).mean()
    od.zero_grad()
    ld.backward()
    od.step()
    lg = -d(f).mean()
    og.zero_grad()
    lg.backward()
    og.step()
print(ld.item(), lg.item())
