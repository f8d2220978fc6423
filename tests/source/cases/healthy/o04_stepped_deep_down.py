"""A helper below the depth that is followed hands model and optimizer to a library."""

import torch
from fastlib import fused_update
from torch import nn


def call13(model, optimizer):
    fused_update(model, optimizer)


def call12(model, optimizer):
    call13(model, optimizer)


def call11(model, optimizer):
    call12(model, optimizer)


def call10(model, optimizer):
    call11(model, optimizer)


def call9(model, optimizer):
    call10(model, optimizer)


def call8(model, optimizer):
    call9(model, optimizer)


def call7(model, optimizer):
    call8(model, optimizer)


def call6(model, optimizer):
    call7(model, optimizer)


def call5(model, optimizer):
    call6(model, optimizer)


def call4(model, optimizer):
    call5(model, optimizer)


def call3(model, optimizer):
    call4(model, optimizer)


def call2(model, optimizer):
    call3(model, optimizer)


def call1(model, optimizer):
    call2(model, optimizer)


def main():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        call1(model, optimizer)


main()
