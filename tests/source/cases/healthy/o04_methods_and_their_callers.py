"""What one method leaves out, its class, its base or its caller may do."""

import torch
import torch.nn.functional as F
from elsewhere import Base
from torch import nn


class Cleared:
    def __init__(self):
        self.net = nn.Linear(4, 2)
        self.optim = torch.optim.Adam(self.net.parameters())

    def step(self, x, y):
        F.cross_entropy(self.net(x), y).backward()
        self.optim.step()

    def before(self):
        self.optim.zero_grad()


class Derived(Base):
    def __init__(self):
        self.net = nn.Linear(4, 2)
        self.optim = torch.optim.Adam(self.net.parameters())

    def step(self, x, y):
        F.cross_entropy(self.net(x), y).backward()
        self.optim.step()


def gradients(net, optimizer, x, y):
    """Whoever asks for the gradients steps."""
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    return [p.grad.clone() for p in net.parameters()]


def one_step(net, optimizer, x, y):
    """The caller clears."""
    F.cross_entropy(net(x), y).backward()
    optimizer.step()


def previous_gradients(net, optimizer, x, y):
    """Steps with what the last call computed."""
    optimizer.step()
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()


def test_one_step():
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.randn(2, 4)).sum().backward()
    optimizer.step()
