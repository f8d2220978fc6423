"""New weights are computed from the gradients first and copied in afterwards."""

import torch
from torch import nn


def install(parameters, values):
    with torch.no_grad():
        for parameter, value in zip(parameters, values):
            parameter.copy_(value)


def in_helper():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        install(model.parameters(), [p - 0.1 * p.grad for p in model.parameters()])


def in_data():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    momentum = [torch.zeros_like(p) for p in model.parameters()]
    for _ in range(10):
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        for parameter, velocity in zip(model.parameters(), momentum):
            velocity.mul_(0.9).add_(parameter.grad)
            parameter.data.copy_(parameter.data - 0.1 * velocity)


in_helper()
in_data()
