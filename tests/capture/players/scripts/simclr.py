import torch
import torch.nn as nn
import torch.nn.functional as F


def nt_xent(z1, z2, temperature=0.2):
    n = z1.size(0)
    z = F.normalize(torch.cat([z1, z2]), dim=1)
    sim = z @ z.t() / temperature
    sim.fill_diagonal_(float("-inf"))
    labels = torch.cat([torch.arange(n) + n, torch.arange(n)])
    return F.cross_entropy(sim, labels)


def augment(x):
    return x * (1 + 0.1 * torch.randn(x.size(0), 1)) + 0.2 * torch.randn_like(x)


torch.manual_seed(0)
centers = torch.randn(200, 32)
encoder = nn.Sequential(nn.Linear(32, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64))
head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-3)
for step in range(200):
    x = centers[torch.randperm(200)[:128]]
    z1, z2 = head(encoder(augment(x))), head(encoder(augment(x)))
    loss = nt_xent(z1, z2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 49:
        print(step, loss.item())
