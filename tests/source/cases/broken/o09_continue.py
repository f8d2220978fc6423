import torch
import torch.nn.functional as F
from torch import nn, optim

model = nn.Linear(8, 2)
optimizer = optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(DATA):  # noqa: F821
    loss = F.cross_entropy(model(x), y) + F.mse_loss(model(x), torch.zeros(2))
    loss.backward()  # finding: accumulation-not-divided
    if (i + 1) % 8:
        continue
    optimizer.step()
    optimizer.zero_grad()
