import torch
from torch import nn

generator, critic = nn.Linear(4, 8), nn.Linear(8, 1)
g_opt = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
c_opt = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))
bce = nn.BCEWithLogitsLoss()
for step in range(1000):
    real, fake = torch.randn(16, 8), generator(torch.randn(16, 4))
    c_opt.zero_grad()
    c_loss = bce(critic(real), torch.ones(16, 1)) + bce(critic(fake.detach()), torch.zeros(16, 1))
    c_loss.backward()
    c_opt.step()
    if step % 5 == 0:
        g_opt.zero_grad()
        g_loss = bce(critic(generator(torch.randn(16, 4))), torch.ones(16, 1))
        g_loss.backward()
        g_opt.step()
