import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(20):
    for p in model.parameters():
        if p.grad is not None:
            p.grad = torch.zeros_like(p)
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
for i in range(20):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    for p in model.parameters():
        p.grad.fill_(0)
for i in range(20):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad.data.zero_()
for i in range(20):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    for p in model.parameters():
        p.grad *= 0
for i in range(20):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    for p in model.parameters():
        del p.grad
for i in range(20):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    list(map(lambda p: p.grad.zero_(), model.parameters()))
