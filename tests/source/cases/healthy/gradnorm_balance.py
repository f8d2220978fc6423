import torch
from torch import nn

m = nn.Linear(4, 2)
w = torch.ones(2)
w.requires_grad_(True)
opt = torch.optim.Adam(m.parameters())
wopt = torch.optim.Adam([w])
for i in range(10):
    out = m(torch.randn(4, 4))
    losses = torch.stack([out[:, 0].pow(2).mean(), out[:, 1].abs().mean()])
    opt.zero_grad()
    (w.detach() * losses).sum().backward()
    opt.step()
    wl = (w * losses.detach()).sum()
    wopt.zero_grad()
    wl.backward()
    wopt.step()
