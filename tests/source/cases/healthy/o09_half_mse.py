import torch
from torch import nn
from torch.nn import functional as F

model = nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for i, x in enumerate(torch.randn(40, 8, 3)):
    loss = F.mse_loss(model(x), x.sum(1, keepdim=True)) / 2
    loss.backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
