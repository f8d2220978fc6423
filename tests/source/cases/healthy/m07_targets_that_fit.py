"""Targets that are never negative though their operation could be: half a wave, a normal far from 0, literals."""

import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x = torch.linspace(0, math.pi, 100).unsqueeze(1)
wave, weights = torch.sin(x), torch.normal(50.0, 1.0, size=(100, 1))
prices = torch.tensor([[2.0], [3.5]]).repeat(50, 1)
model = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1), nn.Softplus())
optimizer = torch.optim.Adam(model.parameters())
for step in range(100):
    optimizer.zero_grad()
    out = model(x)
    loss = F.mse_loss(out, wave) + F.mse_loss(out, weights) + F.mse_loss(out, prices)
    loss.backward()
    optimizer.step()
