"""Extreme learning machine: a fixed random ReLU network under a trained linear layer."""

import itertools
import math
import os
import time
from types import SimpleNamespace

import torch
import torch.nn as nn

cfg = SimpleNamespace(
    widths=(256, 256),
    n_points=6000,
    n_classes=5,
    batch=64,
    steps=600,
    lr=6.0,
    momentum=0.8,
    log_every=25,
    seed=41,
    ckpt="checkpoints/elm.pt",
)


def spirals(n, n_classes, gen):
    """One spiral arm per class."""
    label = torch.randint(0, n_classes, (n,), generator=gen)
    radius = 0.3 + 1.7 * torch.rand(n, generator=gen)
    angle = 2 * math.pi * label / n_classes + 1.6 * radius + 0.1 * torch.randn(n, generator=gen)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), label


class RandomFeatures(nn.Module):
    def __init__(self, n_in, widths):
        super().__init__()
        sizes = (n_in, *widths)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        for layer in self.layers:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.normal_(layer.bias, std=0.5)
        self.scale = 1 / math.sqrt(widths[-1])

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.scale * x


class ExtremeLearner(nn.Module):
    def __init__(self, n_in, n_classes, widths):
        super().__init__()
        self.feature_map = RandomFeatures(n_in, widths)
        self.linear = nn.Linear(widths[-1], n_classes)

    def forward(self, x):
        return self.linear(self.feature_map(x))


def freeze(module):
    for param in module.parameters():
        param.requires_grad = False


@torch.no_grad()
def accuracy(model, x, y):
    return (model(x).argmax(1) == y).float().mean().item()


def train(model, x, y, test, gen):
    criterion = nn.CrossEntropyLoss()
    # The features have a norm of about 1 in all, so the linear layer takes large steps.
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=cfg.momentum)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=cfg.steps, eta_min=cfg.lr / 20)
    started, total = time.time(), 0.0
    for step in range(1, cfg.steps + 1):
        rows = torch.randint(0, len(x), (cfg.batch,), generator=gen)
        loss = criterion(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        total += loss.item()
        if step % cfg.log_every == 0:
            speed = step / (time.time() - started)
            mean = total / cfg.log_every
            print(f"{step:4d}  loss {mean:.4f}  test accuracy {accuracy(model, *test):.3f}  {speed:.0f} it/s")
            total = 0.0


def main():
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    x, y = spirals(cfg.n_points, cfg.n_classes, gen)
    test = spirals(1000, cfg.n_classes, gen)

    model = ExtremeLearner(2, cfg.n_classes, cfg.widths)
    freeze(model.feature_map)
    train(model, x, y, test, gen)

    os.makedirs(os.path.dirname(cfg.ckpt), exist_ok=True)
    torch.save({"state": model.state_dict(), "cfg": vars(cfg)}, cfg.ckpt)


if __name__ == "__main__":
    main()
