"""A loop over settings builds model and optimizer anew in each turn, and takes a single step."""

import torch
from torch import nn

for width in (4, 8, 16):
    model = nn.Linear(width, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.randn(2, width)).mean()
    loss.backward()
    optimizer.step()
    print(width, loss.item())
