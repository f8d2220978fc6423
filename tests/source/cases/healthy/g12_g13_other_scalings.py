import torch
from torch import nn

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
window, mask = 4, torch.ones(1, 8)
for epoch in range(3):
    optimizer.zero_grad()
    for i in range(100):
        (nn.functional.mse_loss(model(torch.randn(4, 8)), torch.zeros(4, 1)) / window).backward()
        model.weight.grad *= mask
        if (i + 1) % window == 0:
            optimizer.step()
            optimizer.zero_grad()
for epoch in range(3):
    for i in range(100):
        (nn.functional.mse_loss(model(torch.randn(4, 8)), torch.zeros(4, 1)) / window).backward()
        if (i + 1) % window == 0:
            optimizer.step()
            optimizer.zero_grad()
    if 100 % window:
        optimizer.step()
        optimizer.zero_grad()
