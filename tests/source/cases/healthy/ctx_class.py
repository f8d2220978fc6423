import torch
from torch import nn
from contextlib import contextmanager


class ZeroAfter:
    def __init__(self, opt):
        self.opt = opt

    def __enter__(self):
        self.opt.zero_grad()
        return self

    def __exit__(self, *exc):
        self.opt.step()


@contextmanager
def update(opt):
    opt.zero_grad()
    yield
    opt.step()


model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(10):
    with ZeroAfter(optimizer):
        loss = model(torch.randn(3, 4)).mean()
        loss.backward()
for i in range(10):
    with update(optimizer):
        loss = model(torch.randn(3, 4)).mean()
        loss.backward()
