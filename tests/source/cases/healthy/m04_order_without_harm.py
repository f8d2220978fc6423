"""Image folders shuffled by hand, and an autoencoder that never looks at a class."""

import random

import torch
import torch.nn.functional as F
from torch import nn

from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder


def shuffled_by_hand():
    dataset = ImageFolder("images")
    random.shuffle(dataset.samples)
    loader = DataLoader(dataset, batch_size=4)
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def autoencoder():
    loader = DataLoader(ImageFolder("images"), batch_size=4)
    model = nn.Conv2d(3, 3, 3, padding=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, _ in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), x).backward()
        optimizer.step()
