import torch
from torch import nn

torch.manual_seed(0)
G, D = nn.Linear(4, 2), nn.Linear(2, 1)
opt_g = torch.optim.Adam(G.parameters(), lr=2e-4)
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4)
criterion = nn.BCEWithLogitsLoss()
d_losses, g_losses, running = [], [], 0.0
for i in range(20):
    real, z = torch.randn(8, 2), torch.randn(8, 4)
    opt_d.zero_grad()
    loss_real = criterion(D(real), torch.ones(8, 1))
    loss_fake = criterion(D(G(z).detach()), torch.zeros(8, 1))
    loss_d = loss_real + loss_fake
    loss_d.backward()
    opt_d.step()
    opt_g.zero_grad()
    loss_g = criterion(D(G(z)), torch.ones(8, 1))
    loss_g.backward()
    opt_g.step()
    d_losses.append(loss_d)  # finding: graph-kept-alive
    g_losses.append(loss_g.item())
    running = running + loss_g  # finding: graph-kept-alive
print(running / 20, len(d_losses))
