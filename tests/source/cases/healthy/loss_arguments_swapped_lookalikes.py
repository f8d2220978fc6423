"""Losses whose first argument is no model output, or whose second is one, on purpose."""

import torch
from torch import nn
from torch.nn import functional as F


def attack(model, x, y):
    delta = torch.zeros_like(x, requires_grad=True)
    optimizer = torch.optim.SGD([delta], lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(delta, torch.sigmoid(model(x)))
        loss.backward()
        optimizer.step()
    return delta


def distill(student, teacher, loader):
    optimizer = torch.optim.Adam(student.parameters())
    for x, y in loader:
        with torch.no_grad():
            soft = teacher(x).softmax(dim=1)
        logits = student(x)
        loss = F.cross_entropy(logits, soft) + F.kl_div(soft.log(), F.softmax(logits, dim=1), reduction="batchmean")
        loss = loss + F.kl_div(logits.log_softmax(1), soft.log(), log_target=True) + F.l1_loss(y, logits)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    student, teacher = nn.Linear(8, 3), nn.Linear(8, 3)
    distill(student, teacher, [(torch.randn(4, 8), torch.randn(4, 3))])
    attack(student, torch.randn(4, 8), None)
