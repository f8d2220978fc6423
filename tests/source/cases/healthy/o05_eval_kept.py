"""Eval mode kept on purpose, for loaded models, for adversarial examples, and where no layer cares."""

import torch
import torch.nn.functional as F
from torch import nn


def finetune(path, loader):
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    net = torch.load(path)
    net.eval()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()


def kept_fixed(loader):
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    # BatchNorm keeps its statistics: the batches are tiny
    net.eval()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()


def train_after_predict(loader):
    net = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2))
    net.eval()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()


def adversarial(loader):
    net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.1), nn.Linear(8, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        net.eval()
        x = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(F.cross_entropy(net(x), y), x)
        opt.zero_grad()
        F.cross_entropy(net(x + grad.sign()), y).backward()
        opt.step()
