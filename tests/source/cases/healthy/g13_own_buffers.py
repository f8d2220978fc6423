import torch
from torch import nn
from torch.nn import functional as F

model = nn.Linear(3, 2)
sums = [torch.zeros_like(p) for p in model.parameters()]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, x in enumerate(torch.randn(40, 8, 3)):
    model.zero_grad()
    F.cross_entropy(model(x), torch.randint(0, 2, (8,))).backward()
    for p, total in zip(model.parameters(), sums):
        p.grad /= 4
        total += p.grad
    if (i + 1) % 4 == 0:
        for p, total in zip(model.parameters(), sums):
            p.grad = total.clone()
            total.zero_()
        optimizer.step()
