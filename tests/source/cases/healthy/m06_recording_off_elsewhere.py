"""Recording is off at the caller, by a context chosen before, or wanted for what the evaluation computes."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn


def evaluate(model, loader):
    model.eval()
    return sum(F.cross_entropy(model(x), y).item() for x, y in loader)


def test(model, loader, keep):
    model.eval()
    grad_context = nullcontext() if keep else torch.no_grad()
    total = 0.0
    with grad_context:
        for x, y in loader:
            total += F.cross_entropy(model(x), y).item()
    return total


def test_saliency(model, loader):
    model.eval()
    maps = []
    for x, y in loader:
        x.requires_grad_()
        F.cross_entropy(model(x), y).backward()
        maps.append(x.grad.abs())
    return maps


def validate_unrolled(model, optimizer, loader):
    """The validation loss is itself back-propagated, as in architecture search."""
    model.eval()
    total = 0.0
    for x, y in loader:
        total = total + F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    total.backward()
    optimizer.step()


torch.manual_seed(0)
batches = [(torch.randn(4, 4), torch.randint(0, 2, (4,))) for _ in range(3)]
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    net.train()
    for x, y in batches:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
    with torch.no_grad():
        print(evaluate(net, batches))
    print(test(net, batches, epoch == 0))
test_saliency(net, batches)
validate_unrolled(net, opt, batches)
