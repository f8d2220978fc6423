"""Means and sums that may be added: divided later, balanced by a weight, over parameters, or all of one kind."""

import torch
from torch import nn
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(16, 8), nn.Linear(4, 16)

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, dim=1)
        return self.dec(mu + torch.randn_like(mu) * torch.exp(logvar / 2)), mu, logvar


def kl_of(mu, logvar):
    return -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


def train(args, loader):
    torch.manual_seed(0)
    vae = VAE()
    optimizer = torch.optim.Adam(vae.parameters(), lr=1e-3)
    for x, y in loader:
        out, mu, logvar = vae(x)
        kl = kl_of(mu, logvar)
        losses = [
            F.mse_loss(out, x) + kl / x.size(0),
            F.mse_loss(out, x) + args.beta * kl,
            F.mse_loss(out, x) + 0.00025 * kl,
            784 * F.mse_loss(out, x) + kl,
            F.mse_loss(out, x, reduction="sum") + kl,
            F.mse_loss(out, x) - 0.5 * torch.sum(torch.mean(1 + logvar - mu.pow(2) - logvar.exp(), 0)),
            F.mse_loss(out, x) + torch.sum(mu.pow(2), dim=1).mean(),
            F.mse_loss(out, x) + kl.div(len(x)),
            F.mse_loss(out, x, reduction=args.reduction) + kl,
        ]
        for i in range(len(losses)):
            losses[i].backward(retain_graph=True)
        losses[0].backward(retain_graph=True)
        losses[1].backward(retain_graph=True)
        losses[2].backward(retain_graph=True)
        losses[3].backward(retain_graph=True)
        losses[4].backward(retain_graph=True)
        losses[5].backward(retain_graph=True)
        losses[6].backward(retain_graph=True)
        losses[7].backward(retain_graph=True)
        losses[8].backward()
        optimizer.step()
        optimizer.zero_grad()
