import torch
import torch.nn as nn

torch.manual_seed(0)
latent = 8
G = nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
D = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()


def real_batch(n):
    angle = torch.randint(0, 8, (n,)) * 0.785398
    return torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.05 * torch.randn(n, 2)


for step in range(400):
    real = real_batch(128)
    fake = G(torch.randn(128, latent))
    d_real, d_fake = D(real), D(fake.detach())
    loss_d = bce(d_real, torch.ones_like(d_real)) + bce(d_fake, torch.zeros_like(d_fake))
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()

    g_out = D(fake)
    loss_g = bce(g_out, torch.ones_like(g_out))
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    if step % 100 == 99:
        print(step + 1, loss_d.item(), loss_g.item())
