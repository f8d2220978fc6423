"""Formulas on data, on angles drawn at random, and in a number that is only printed: no gradient passes them."""

import torch
from torch import nn
from torch.nn import functional as F


def loss_fn(out, y):
    rmse = torch.sqrt(torch.mean((out - y) ** 2, dim=1)).detach()
    print(rmse.mean().item(), torch.sqrt(torch.sum((out - y) ** 2, dim=1)).mean().item())
    return F.mse_loss(out, y, reduction="none")


def train(loader):
    torch.manual_seed(0)
    model = nn.Linear(3, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        target = torch.where(y > 0, torch.log(y), torch.zeros_like(y))
        scale = torch.sqrt(torch.sum(x**2, dim=1, keepdim=True))
        theta = torch.acos(1 - 2 * torch.rand(5))
        loss = (loss_fn(model(x), target) * scale * theta).mean()
        loss.backward()
        optimizer.step()
