"""Sizes noted on modules that have none, a weight made anew, and a freeze that is also done properly."""

import torch
import torchvision
from torch import nn
from torch.nn import functional as F
from torchvision.models.detection import FasterRCNN


def detector(loader):
    backbone = torchvision.models.mobilenet_v2(weights="DEFAULT").features
    backbone.out_channels = 1280
    model = FasterRCNN(backbone, num_classes=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, targets in loader:
        loss = sum(model(images, targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def headless(loader):
    backbone = torchvision.models.resnet18()
    width = backbone.fc.in_features
    backbone.fc = nn.Identity()
    backbone.fc.out_features = width
    backbone.num_features = width
    stem = nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU())
    stem.out_channels = 3
    head = nn.Linear(width, 2)
    parts = nn.ModuleList([stem, backbone, head])
    optimizer = torch.optim.SGD(parts.parameters(), lr=0.01)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(head(backbone(stem(x))), y).backward()
        optimizer.step()


def frozen_twice(loader):
    model = torchvision.models.resnet18()
    for layer in model.children():
        layer.requires_grad = False
        for p in layer.parameters():
            p.requires_grad = False
    model.fc = nn.Linear(512, 2)
    optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.01)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
