"""nll_loss that is right, or that nobody can judge from here."""

import torch
from torch import nn
from torch.nn import functional as F

from somewhere import build_model


class Net(nn.Module):
    def __init__(self, log_probs=True):
        super().__init__()
        self.fc = nn.Linear(8, 3)
        self.out = nn.LogSoftmax(dim=1) if log_probs else nn.Identity()

    def forward(self, x):
        return self.out(self.fc(x))


class Logs(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        z = self.fc(x)
        return z - z.logsumexp(dim=1, keepdim=True)


def focal_weight(logits, target):
    return (1 + F.nll_loss(F.softmax(logits, dim=1), target, reduction="none")) ** 2


def saliency(model, x, target):
    score = -F.nll_loss(nn.Linear(8, 3)(x), target, reduction="sum")
    return torch.autograd.grad(score, x)


def train(args, loader):
    known, logs, imported = Net(args.log_probs), Logs(), build_model()
    pipeline = nn.Sequential(nn.Linear(8, 3))
    pipeline.add_module("log", nn.LogSoftmax(dim=1))
    params = [*known.parameters(), *logs.parameters(), *imported.parameters(), *pipeline.parameters()]
    optimizer = torch.optim.SGD(params, lr=0.1)
    criterion = nn.NLLLoss()
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(known(x), y) + F.nll_loss(logs(x), y) + F.nll_loss(imported(x), y) + criterion(pipeline(x), y)
        loss = loss + criterion(torch.softmax(pipeline[0](x), 1).clamp_min(1e-9).log(), y)
        loss = loss + (focal_weight(pipeline[0](x), y) * F.cross_entropy(pipeline[0](x), y, reduction="none")).mean()
        loss.backward()
        optimizer.step()
