"""Logarithms, roots and divisions that are guarded, cannot reach their edge, or are not on the way to a loss."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(16, 8), nn.Linear(4, 16)

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, dim=1)
        z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        return self.dec(z), kl


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(x.size(-1))
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        return weights / weights.sum(-1, keepdim=True) @ x


def contrastive_loss(a, b, temperature=0.1):
    a, b = a / a.norm(dim=1, keepdim=True), F.normalize(b, dim=1)
    sim = torch.exp(a @ b.T / temperature)
    return -torch.log(sim.diagonal() / sim.sum(1)).mean()


def gradient_penalty_loss(scores, inputs):
    gradients = torch.autograd.grad(scores.sum(), inputs, create_graph=True)[0]
    norm = torch.sqrt(torch.sum(gradients**2, dim=1) + 1e-12)
    return ((norm - 1) ** 2).mean()


def gaussian_loss(mean, scale, y):
    variance = F.softplus(scale) + 1e-6
    return (0.5 * torch.log(variance) + (y - mean) ** 2 / (2 * variance)).mean()


class Angle(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.acos(torch.matmul(a, b.transpose(-1, -2)))

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return -torch.matmul(grad, b), -torch.matmul(grad.transpose(-1, -2), a)


def train(loader):
    torch.manual_seed(0)
    vae, attention, policy = VAE(), Attention(16), nn.Linear(16, 3)
    optimizer = torch.optim.Adam([*vae.parameters(), *attention.parameters(), *policy.parameters()], lr=1e-3)
    for x, y in loader:
        again, kl = vae(x)
        probs = F.softmax(policy(x), dim=1)
        entropy = -(probs * probs.clamp_min(1e-8).log()).sum(1).mean()
        safe = torch.where(y > 0, torch.log(y.clamp_min(1e-6)), torch.zeros_like(y))
        mask = torch.log(torch.tril(torch.ones(4, 4)) + 1e-9)
        loss = F.mse_loss(again, x) + kl - 0.01 * entropy + safe.mean() + mask.mean()
        loss = loss + contrastive_loss(again, x) + gaussian_loss(again, x, y)
        loss = loss + torch.acos(F.cosine_similarity(again, x).clamp(-0.999, 0.999)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            rmse = torch.sqrt(F.mse_loss(vae(x)[0], x))
            perplexity = torch.exp(-(probs * torch.log(probs)).sum(1)).mean()
        print(rmse.item(), perplexity.item(), torch.sqrt(F.mse_loss(again, x)).item())
