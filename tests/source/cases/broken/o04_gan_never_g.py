import torch
from torch import nn

G, D = nn.Linear(2, 4), nn.Linear(4, 1)
optG = torch.optim.Adam(G.parameters())
optD = torch.optim.Adam(D.parameters())
for i in range(10):
    fake = G(torch.randn(4, 2))
    optD.zero_grad()
    d_loss = D(fake.detach()).mean() - D(torch.randn(4, 4)).mean()
    d_loss.backward()
    optD.step()
    g_loss = -D(fake).mean()
    g_loss.backward()
    optG.step()  # finding: step-order
