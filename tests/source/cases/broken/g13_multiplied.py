import torch
from torch import nn

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
N = 4
for i in range(100):
    nn.functional.mse_loss(model(torch.randn(4, 8)), torch.zeros(4, 1)).backward()
    for name, parameter in model.named_parameters():
        parameter.grad.data.mul_(1.0 / N)  # finding: gradients-rescaled
    if i % N == N - 1:
        optimizer.step()
        optimizer.zero_grad()
