"""Activations on an output that are right: between layers, scaled, optional, or where the targets fit them."""

import torch
from torch import nn
from torch.nn import functional as F


class ConvBlock(nn.Sequential):
    def __init__(self, before, after, act=True):
        layers = [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after)]
        if act:
            layers += [nn.ReLU(inplace=True)]
        super().__init__(*layers)


class Segmenter(nn.Module):
    def __init__(self, classes, act):
        super().__init__()
        self.body = nn.Sequential(ConvBlock(3, 16), ConvBlock(16, 16))
        self.head = ConvBlock(16, classes, act=act)

    def forward(self, x):
        return self.head(self.body(x))


class Stack(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i < len(self.layers) - 1:
                x = F.relu(x)
        return x


def trimmed(sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers.append(nn.Linear(a, b))
        layers.append(nn.ReLU())
    layers.pop()
    return nn.Sequential(*layers)


def train(args, loader):
    torch.manual_seed(0)
    segmenter, stack, mlp = Segmenter(5, args.act), Stack([8, 16, 3]), trimmed([8, 16, 3])
    generator = nn.Sequential(nn.Linear(8, 64), nn.Tanh())
    pointer = nn.Linear(8, 3)
    modules = nn.ModuleList([segmenter, stack, mlp, generator, pointer])
    optimizer = torch.optim.Adam(modules.parameters(), lr=1e-3)
    for image, mask, x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(segmenter(image), mask) + F.cross_entropy(stack(x), y) + F.cross_entropy(mlp(x), y)
        loss = loss + F.cross_entropy(10 * torch.tanh(pointer(x)), y)
        loss = loss + F.mse_loss(generator(x), image.flatten(1)) + F.mse_loss(torch.sigmoid(pointer(x)), y.float())
        loss.backward()
        optimizer.step()
