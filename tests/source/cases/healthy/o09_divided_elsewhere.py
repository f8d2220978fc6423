import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()


def in_the_rate(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr / args.accumulate)
    for i, (x, y) in enumerate(loader):
        nn.functional.cross_entropy(model(x), y).backward()
        if (i + 1) % args.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()


def only_when_needed(model, loader, n):
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        if n > 1:
            loss = loss * (1 / n)
        loss.backward()
        if not (i + 1) % n:
            optimizer.step()
            optimizer.zero_grad()


def as_a_gradient(model, loader, k):
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    share = torch.tensor(1.0).div(k)
    for i, (x, y) in enumerate(loader):
        nn.functional.cross_entropy(model(x), y).backward(share)
        if (i + 1) % k == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()


class Weighted(nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.weight = steps**-1

    def forward(self, scores, labels):
        return nn.functional.cross_entropy(scores, labels) * self.weight


def in_the_loss(model, loader, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    criterion = Weighted(steps)
    for i, (x, y) in enumerate(loader):
        criterion(model(x), y).backward()
        if (i + 1) % steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def summed(model, loader, m):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    criterion = nn.CrossEntropyLoss(reduction="sum")
    for i, (x, y) in enumerate(loader):
        criterion(model(x), y).backward()
        if (i + 1) % m == 0:
            optimizer.step()
            optimizer.zero_grad()
