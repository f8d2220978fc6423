import torch
import torch.nn as nn


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, o))


def penalty(critic, real, fake):
    eps = torch.rand(real.size(0), 1)
    x = (eps * real + (1 - eps) * fake).requires_grad_(True)
    g = torch.autograd.grad(critic(x).sum(), x, create_graph=True)[0]
    return ((g.norm(2, dim=1) - 1) ** 2).mean()


torch.manual_seed(0)
gen, critic = mlp(4, 2), mlp(2, 1)
og = torch.optim.Adam(gen.parameters(), lr=5e-4, betas=(0.0, 0.9))
oc = torch.optim.Adam(critic.parameters(), lr=5e-4, betas=(0.0, 0.9))
for it in range(150):
    for _ in range(3):
        real = torch.randn(64, 2) * 0.3 + torch.tensor([2.0, -1.0])
        fake = gen(torch.randn(64, 4)).detach()
        loss_c = critic(fake).mean() - critic(real).mean() + 10 * penalty(critic, real, fake)
        oc.zero_grad()
        loss_c.backward()
        oc.step()
    loss_g = -critic(gen(torch.randn(64, 4))).mean()
    og.zero_grad()
    loss_g.backward()
    og.step()
    if it % 50 == 49:
        print(it, loss_c.item(), loss_g.item())
