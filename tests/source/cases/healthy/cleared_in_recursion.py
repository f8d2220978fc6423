import torch
from torch import nn
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def clear(n):
    if n:
        return clear(n - 1)
    opt.zero_grad()
for i in range(10):
    clear(3)
    loss = model(torch.randn(2, 4)).pow(2).mean()
    loss.backward()
    opt.step()
