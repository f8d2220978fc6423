"""Optimizers that step in a hook of the gradients: through a library, through an object, or by hand."""

import torch
from fastlib import fused
from torch import nn


class Stepper:
    def __init__(self, optimizer):
        self.go = optimizer.step

    def __call__(self):
        self.go()


def through_library():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def hook(parameter):
        fused(parameter, optimizer)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    for _ in range(10):
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()


def through_object():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stepper = Stepper(optimizer)

    def hook(parameter):
        stepper()

    model.weight.register_post_accumulate_grad_hook(hook)
    for _ in range(10):
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()


def by_hand():
    model = nn.Linear(4, 1)
    schedule = torch.optim.SGD(model.parameters(), lr=0.1)

    def hook(parameter):
        parameter.data.add_(parameter.grad, alpha=-schedule.param_groups[0]["lr"])

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    for _ in range(10):
        x = torch.randn(8, 4)
        schedule.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()


through_library()
through_object()
by_hand()
