import torch
from torch import nn

policy = nn.Linear(4, 2)
popt = torch.optim.Adam(policy.parameters())
lam = torch.tensor(1.0, requires_grad=True)
lopt = torch.optim.Adam([lam])
for i in range(10):
    out = policy(torch.randn(4, 4))
    cost = out.pow(2).mean()
    loss = out.mean() + lam.detach() * cost
    popt.zero_grad()
    loss.backward()
    popt.step()
    lam_loss = -lam * (cost.detach() - 0.1)
    lopt.zero_grad()
    lam_loss.backward()
    lopt.step()
