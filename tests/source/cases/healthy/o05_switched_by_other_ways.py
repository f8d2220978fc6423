"""Models that are put back in train mode module by module, by name, or not at all because nothing in them trains."""

import torch
import torch.nn.functional as F
from torch import nn

from torchvision import models


def each_module(train_loader, val_loader):
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for module in model.modules():
            module.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            print(sum(F.cross_entropy(model(x), y).item() for x, y in val_loader))


def by_name(train_loader, val_loader):
    net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def mode(training):
        getattr(net, "train" if training else "eval")()

    for _ in range(3):
        mode(True)
        for x, y in train_loader:
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            print(sum(F.cross_entropy(net(x), y).item() for x, y in val_loader))


def probe(train_loader, val_loader):
    net = models.resnet18()
    for parameter in net.parameters():
        parameter.requires_grad = False
    net.fc = nn.Linear(512, 5)
    net.eval()
    optimizer = torch.optim.SGD(net.fc.parameters(), lr=0.1)
    for _ in range(3):
        for x, y in train_loader:
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            print(sum(F.cross_entropy(net(x), y).item() for x, y in val_loader))
