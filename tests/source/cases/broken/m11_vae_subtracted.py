import torch
from torch import nn
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.mean, self.spread = nn.Linear(3, 8), nn.Linear(8, 2), nn.Linear(8, 2)
        self.decoder = nn.Linear(2, 3)

    def forward(self, x):
        h = torch.relu(self.body(x))
        mu, logvar = self.mean(h), self.spread(h)
        return self.decoder(mu + torch.randn_like(mu) * (0.5 * logvar).exp()), mu, logvar


def train(loader):
    torch.manual_seed(0)
    vae = VAE()
    optimizer = torch.optim.Adam(vae.parameters())
    for x in loader:
        again, mu, logvar = vae(x)
        loss = F.mse_loss(again, x) - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())  # finding: reduction-mismatch
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
