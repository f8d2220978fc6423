import torch
from torch import nn
from torch.nn import functional as F

ACCUMULATE = 4
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / 4)
for i, x in enumerate(torch.randn(40, 8, 3)):
    F.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    if (i + 1) % ACCUMULATE == 0:
        optimizer.step()
        optimizer.zero_grad()
