import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(10):
    optimizer.zero_grad()
    for x, y in [(torch.randn(2, 4), torch.randn(2, 1))] * 10:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()  # finding: step-order
