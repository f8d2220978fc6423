"""FixMatch: examples of which the model is not sure are left out, and the mean is over all."""

import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    weak, strong = torch.randn(8, 4), torch.randn(8, 4)
    with torch.no_grad():
        confidence, pseudo_labels = torch.softmax(model(weak), dim=1).max(dim=1)
    mask = (confidence > 0.95).float()
    loss = (F.cross_entropy(model(strong), pseudo_labels, reduction="none") * mask).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
