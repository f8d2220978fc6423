import torch
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(100):
    loss = nn.functional.mse_loss(model(torch.randn(4, 8)), torch.zeros(4, 2)) / 4
    loss.backward()
    if i % 4 == 3:
        optimizer.step()
    optimizer.zero_grad()  # finding: zero-inside-window
