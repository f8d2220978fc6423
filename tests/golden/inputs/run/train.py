"""A run with a cause (O12) and its symptom, whose record lies beside it: made by `unstuck run train.py`."""

import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(64, 8)
targets = inputs[:, :4].argmax(1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Softmax(dim=1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(12):
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
