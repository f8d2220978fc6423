"""Forecast the heating demand of a building for the next hour."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    samples: int = 4096
    hidden: int = 96
    depth: int = 3
    dropout: float = 0.05
    batch_size: int = 64
    epochs: int = 9
    lr: float = 2e-3
    weight_decay: float = 1e-4
    seed: int = 17
    out_dir: str = "runs/heating"


def simulate_hours(count, rng):
    hour = rng.integers(0, 24, count)
    day = rng.integers(0, 365, count)
    outside = 10 - 12 * np.cos(2 * np.pi * day / 365) - 4 * np.cos(2 * np.pi * hour / 24) + rng.normal(0, 2, count)
    wind = rng.gamma(2.0, 2.0, count)
    sun = np.clip(np.sin(np.pi * (hour - 6) / 12), 0, None) * rng.uniform(0.2, 1.0, count)
    occupied = ((hour > 7) & (hour < 19)).astype(np.float64)
    demand = 2.5 * np.clip(19 - outside, 0, None) * (1 + 0.04 * wind) - 12 * sun + 6 * occupied
    features = np.stack(
        [
            np.sin(2 * np.pi * hour / 24),
            np.cos(2 * np.pi * hour / 24),
            outside,
            wind,
            sun,
            occupied,
        ],
        axis=1,
    )
    return features.astype(np.float32), (demand + rng.normal(0, 1, count)).astype(np.float32)


def standardise(array, mean, std):
    return (array - mean) / std


class DemandNet(nn.Module):
    def __init__(self, n_features, hidden, depth, dropout):
        super().__init__()
        layers = []
        width = n_features
        for _ in range(depth):
            layers += [nn.Linear(width, hidden), nn.SiLU(), nn.Dropout(dropout)]
            width = hidden
        self.body = nn.Sequential(*layers)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.body(x)).squeeze(-1)


def log_cosh(pred, target):
    diff = pred - target
    return (diff + F.softplus(-2.0 * diff) - math.log(2.0)).mean()


def make_loaders(cfg):
    rng = np.random.default_rng(cfg.seed)
    features, demand = simulate_hours(cfg.samples, rng)
    cut = int(0.85 * cfg.samples)
    features = standardise(features, features[:cut].mean(0), features[:cut].std(0))
    demand = standardise(demand, demand[:cut].mean(), demand[:cut].std())
    x, y = torch.from_numpy(features), torch.from_numpy(demand)
    train = DataLoader(TensorDataset(x[:cut], y[:cut]), batch_size=cfg.batch_size, shuffle=True, drop_last=True)
    valid = DataLoader(TensorDataset(x[cut:], y[cut:]), batch_size=256)
    return train, valid


@torch.no_grad()
def validate(model, loader):
    model.eval()
    total, seen = 0.0, 0
    for x, y in loader:
        total += log_cosh(model(x), y).item() * len(x)
        seen += len(x)
    return total / seen


def train_one_epoch(model, loader, optimizer, scheduler):
    model.train()
    running = 0.0
    for x, y in loader:
        loss = log_cosh(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        running += loss.item()
    return running / len(loader)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    train_loader, valid_loader = make_loaders(cfg)
    model = DemandNet(6, cfg.hidden, cfg.depth, cfg.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay)
    total_steps = cfg.epochs * len(train_loader)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total_steps, eta_min=1e-4)

    out_dir = Path(cfg.out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    best = float("inf")
    for epoch in range(cfg.epochs):
        train_loss = train_one_epoch(model, train_loader, optimizer, scheduler)
        valid_loss = validate(model, valid_loader)
        print(f"[{epoch + 1:02d}/{cfg.epochs}] train {train_loss:.4f}  valid {valid_loss:.4f}")
        if valid_loss < best:
            best = valid_loss
            torch.save({"config": asdict(cfg), "state": model.state_dict()}, out_dir / "best.pt")
    print(f"best validation loss {best:.4f}")


if __name__ == "__main__":
    main()
