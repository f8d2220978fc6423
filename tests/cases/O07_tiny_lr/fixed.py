from __future__ import annotations

import dataclasses
import itertools
import math
import time

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, IterableDataset


@dataclasses.dataclass(frozen=True)
class DataCfg:
    side: int = 16
    directions: int = 8
    noise: float = 0.4
    batch_size: int = 32


@dataclasses.dataclass(frozen=True)
class OptimCfg:
    name: str = "adam"
    lr: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.99)
    warmup: int = 20


@dataclasses.dataclass(frozen=True)
class Cfg:
    data: DataCfg = dataclasses.field(default_factory=DataCfg)
    optim: OptimCfg = dataclasses.field(default_factory=OptimCfg)
    iterations: int = 560
    report: int = 70
    seed: int = 2024


class Gratings(IterableDataset):
    """An endless stream of striped patches; the label is the direction of the stripes."""

    def __init__(self, cfg: DataCfg, seed: int):
        self.cfg = cfg
        self.seed = seed

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        axis = torch.linspace(-1, 1, self.cfg.side)
        yy, xx = torch.meshgrid(axis, axis, indexing="ij")
        while True:
            k = int(torch.randint(self.cfg.directions, (), generator=g))
            angle = math.pi * k / self.cfg.directions
            freq, phase = (torch.rand(2, generator=g) * torch.tensor([3.0, 6.28])).tolist()
            wave = torch.sin((6.0 + freq) * (math.cos(angle) * xx + math.sin(angle) * yy) + phase)
            noise = self.cfg.noise * torch.randn(wave.shape, generator=g)
            yield (wave + noise).unsqueeze(0), k


def conv(cin: int, cout: int, k: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(cin, cout, k, padding=k // 2), nn.GroupNorm(4, cout), nn.GELU())


class OrientationNet(nn.Module):
    def __init__(self, directions: int):
        super().__init__()
        self.trunk = nn.Sequential(conv(1, 16, 5), nn.AvgPool2d(2), conv(16, 32, 3), nn.MaxPool2d(2), conv(32, 32, 3))
        self.pool = nn.AdaptiveMaxPool2d(2)
        self.fc = nn.Linear(128, directions)

    def forward(self, img):
        return self.fc(self.pool(self.trunk(img)).flatten(1))


def make_optimizer(params, cfg: OptimCfg) -> optim.Optimizer:
    if cfg.name == "adam":
        return optim.Adam(params, lr=cfg.lr, betas=cfg.betas)
    if cfg.name == "sgd":
        return optim.SGD(params, lr=cfg.lr, momentum=cfg.betas[0])
    raise ValueError(f"unknown optimizer {cfg.name!r}")


def warmup(cfg: OptimCfg):
    return lambda it: min(1.0, (it + 1) / cfg.warmup)


class Average:
    def __init__(self):
        self.reset()

    def reset(self):
        self.total, self.n = 0.0, 0

    def add(self, value, n=1):
        self.total += value * n
        self.n += n

    @property
    def value(self):
        return self.total / max(self.n, 1)


@torch.no_grad()
def accuracy_on_fresh_patches(net: nn.Module, cfg: Cfg, batches: int = 8) -> float:
    net.eval()
    acc = Average()
    for img, k in itertools.islice(DataLoader(Gratings(cfg.data, cfg.seed + 1), batch_size=64), batches):
        acc.add((net(img).argmax(1) == k).float().mean().item(), len(k))
    net.train()
    return acc.value


def main(cfg: Cfg) -> None:
    torch.manual_seed(cfg.seed)
    net = OrientationNet(cfg.data.directions)
    optimizer = make_optimizer(net.parameters(), cfg.optim)
    lr_plan = optim.lr_scheduler.LambdaLR(optimizer, warmup(cfg.optim))
    loader = DataLoader(Gratings(cfg.data, cfg.seed), batch_size=cfg.data.batch_size)
    meter, tic = Average(), time.perf_counter()
    for it, (img, k) in enumerate(itertools.islice(loader, cfg.iterations), 1):
        loss = nn.functional.cross_entropy(net(img), k)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lr_plan.step()
        meter.add(loss.item())
        if it % cfg.report == 0:
            rate = it / (time.perf_counter() - tic)
            print(f"[{it:4d}/{cfg.iterations}] loss {meter.value:.4f}  {rate:.0f} it/s")
            meter.reset()
    print(f"test accuracy {accuracy_on_fresh_patches(net, cfg):.3f}")


if __name__ == "__main__":
    main(Cfg())
