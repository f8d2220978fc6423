"""Predict the energy use of a building from weather and occupancy features."""

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn


@dataclass
class Config:
    hidden: tuple = (96, 96)
    n_rows: int = 6000
    micro_batch: int = 16
    n_accumulate: int = 8
    max_updates: int = 400
    peak_lr: float = 0.08
    momentum: float = 0.8
    warmup: int = 20
    print_every: int = 25
    seed: int = 2024
    save_dir: Path = field(default_factory=lambda: Path("runs/energy"))


def build_table(cfg):
    rng = np.random.default_rng(cfg.seed)
    hour = rng.uniform(0, 24, cfg.n_rows)
    outside = rng.normal(12, 8, cfg.n_rows)
    people = rng.poisson(30, cfg.n_rows) * ((hour > 8) & (hour < 18))
    wind = rng.gamma(2.0, 2.0, cfg.n_rows)
    sun = np.clip(np.sin((hour - 6) / 12 * math.pi), 0, None) * rng.uniform(0.3, 1.0, cfg.n_rows)
    heating = np.clip(18 - outside, 0, None) * (1 + 0.05 * wind)
    cooling = np.clip(outside - 22, 0, None) * (1 + 0.02 * people)
    energy = 3 * heating + 5 * cooling + 0.8 * people - 10 * sun + rng.normal(0, 2, cfg.n_rows)
    columns = [np.sin(hour / 24 * 2 * math.pi), np.cos(hour / 24 * 2 * math.pi), outside, people, wind, sun]
    return np.stack(columns, axis=1), energy


class Standardizer:
    def __init__(self, values):
        self.mean = values.mean(axis=0)
        self.std = values.std(axis=0) + 1e-8

    def __call__(self, values):
        return ((values - self.mean) / self.std).astype(np.float32)


def make_mlp(n_in, hidden):
    layers, width = [], n_in
    for h in hidden:
        layers += [nn.Linear(width, h), nn.SiLU()]
        width = h
    layers.append(nn.Linear(width, 1))
    return nn.Sequential(*layers)


class EnergyTrainer:
    def __init__(self, cfg):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        features, energy = build_table(cfg)
        n_val = cfg.n_rows // 10
        scale_x, scale_y = Standardizer(features[n_val:]), Standardizer(energy[n_val:])
        self.val = torch.from_numpy(scale_x(features[:n_val])), torch.from_numpy(scale_y(energy[:n_val]))
        self.x, self.y = scale_x(features[n_val:]), scale_y(energy[n_val:])
        self.rng = np.random.default_rng(cfg.seed + 1)

        self.net = make_mlp(features.shape[1], cfg.hidden)
        self.loss_fn = nn.SmoothL1Loss()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=cfg.peak_lr, momentum=cfg.momentum)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, self._schedule)

    def _schedule(self, update):
        if update < self.cfg.warmup:
            return (update + 1) / self.cfg.warmup
        progress = (update - self.cfg.warmup) / max(1, self.cfg.max_updates - self.cfg.warmup)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))

    def micro_batches(self):
        while True:
            order = self.rng.permutation(len(self.x))
            for start in range(0, len(order) - self.cfg.micro_batch + 1, self.cfg.micro_batch):
                rows = order[start : start + self.cfg.micro_batch]
                yield torch.from_numpy(self.x[rows]), torch.from_numpy(self.y[rows])

    def average_gradients(self):
        for p in self.net.parameters():
            p.grad.div_(self.cfg.n_accumulate)

    def update(self, stream):
        self.net.train()
        total = 0.0
        self.opt.zero_grad()
        for _ in range(self.cfg.n_accumulate):
            x, y = next(stream)
            loss = self.loss_fn(self.net(x).squeeze(-1), y)
            loss.backward()
            self.average_gradients()
            total += loss.item()
        self.opt.step()
        self.sched.step()
        return total / self.cfg.n_accumulate

    @torch.no_grad()
    def validate(self):
        self.net.eval()
        x, y = self.val
        residual = self.net(x).squeeze(-1) - y
        return residual.pow(2).mean().sqrt().item()

    def fit(self):
        stream = self.micro_batches()
        running = 0.0
        for update in range(1, self.cfg.max_updates + 1):
            running += self.update(stream)
            if update % self.cfg.print_every == 0:
                lr, mean = self.sched.get_last_lr()[0], running / self.cfg.print_every
                print(f"[{update:4d}] loss {mean:.4f}  lr {lr:.3f}  rmse {self.validate():.3f}")
                running = 0.0
        self.cfg.save_dir.mkdir(parents=True, exist_ok=True)
        torch.save(self.net.state_dict(), self.cfg.save_dir / "last.pt")


if __name__ == "__main__":
    EnergyTrainer(Config()).fit()
