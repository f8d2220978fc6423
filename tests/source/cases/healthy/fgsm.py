import torch
import torch.nn as nn
import torch.nn.functional as F

model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def perturb(x, y, eps):
    x = x.clone().detach().requires_grad_(True)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return (x + eps * x.grad.sign()).detach()


for i in range(100):
    x, y = torch.rand(8, 784), torch.randint(0, 10, (8,))
    adv = perturb(x, y, 0.1)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(adv), y)
    loss.backward()
    optimizer.step()
