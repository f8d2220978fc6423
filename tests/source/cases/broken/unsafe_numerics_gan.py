import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1), nn.Sigmoid())

    def forward(self, x):
        return self.net(x)


class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0):
        super().__init__()
        self.gamma = gamma

    def forward(self, logits, target):
        log_p = F.softmax(logits, dim=1).log()  # finding: unsafe-numerics
        p = log_p.exp()
        return -((1 - p) ** self.gamma * log_p).gather(1, target.unsqueeze(1)).mean()


def energy(scores):
    weights = nn.Linear(4, 4)
    z = weights(scores)
    return torch.log(torch.sum(torch.exp(z), dim=1)).mean()  # finding: unsafe-numerics


torch.manual_seed(0)
G, D = nn.Linear(4, 2), Discriminator()
opt_g, opt_d = optim.Adam(G.parameters(), lr=1e-4), optim.Adam(D.parameters(), lr=1e-4)
for step in range(100):
    fake, real = G(torch.randn(16, 4)), torch.randn(16, 2)
    loss_d = -torch.mean(torch.log(D(real)) + torch.log(1.0 - D(fake.detach())))  # finding: unsafe-numerics
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
    loss_g = torch.log(1.0 - D(fake)).mean() + energy(torch.randn(3, 4))  # finding: unsafe-numerics
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
