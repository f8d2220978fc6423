import torch
from torch import nn

enc = nn.Sequential(nn.Linear(10, 4))
x = torch.randn(5, 10)
target = torch.randn(5, 4)
z = enc(x).detach()
z.requires_grad = True
opt = torch.optim.Adam([z], lr=0.1)
for i in range(50):
    opt.zero_grad()
    loss = ((z - target) ** 2).mean() + 0.1 * z.norm()
    loss.backward()
    opt.step()

u = enc(x).detach().clone()
u.requires_grad_(True)
opt2 = torch.optim.Adam([u], lr=0.1)
for i in range(50):
    opt2.zero_grad()
    loss = ((u - target) ** 2).mean()
    loss.backward()
    opt2.step()
