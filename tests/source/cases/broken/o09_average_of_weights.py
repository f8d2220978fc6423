import copy

import torch
from torch import nn
from torch.nn import functional as F

model = nn.Linear(3, 1)
average = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, x in enumerate(torch.randn(40, 8, 3)):
    F.mse_loss(model(x), x.sum(1, keepdim=True)).backward()  # finding: accumulation-not-divided
    if (i + 1) % 8 == 0:
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters()):
                kept.mul_(0.99).add_(new, alpha=0.01)
