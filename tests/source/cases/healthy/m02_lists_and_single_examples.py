"""dim=0 over the classes of one example, and over a list of examples that are ranked among each other."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model, ranker = nn.Linear(3, 5), nn.Linear(3, 1)
optimizer = torch.optim.SGD([*model.parameters(), *ranker.parameters()], lr=0.1)
for x, y in DataLoader(TensorDataset(torch.randn(100, 3), torch.rand(100, 5)), batch_size=None, shuffle=True):
    optimizer.zero_grad()
    F.mse_loss(F.softmax(model(x), dim=0), y).backward()
    optimizer.step()
for x, y in DataLoader(TensorDataset(torch.randn(64, 3), torch.rand(64, 1)), batch_size=8, shuffle=True):
    optimizer.zero_grad()
    rank = F.log_softmax(ranker(x), dim=0)
    F.kl_div(rank, F.softmax(y, dim=0), reduction="sum").backward()
    optimizer.step()
