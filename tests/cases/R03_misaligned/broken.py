"""PointNet-style classifier of small point clouds."""

import os
import random
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

cfg = SimpleNamespace(
    clouds=6000,
    points=24,
    valid_fraction=0.1,
    batch_size=40,
    epochs=6,
    lr=2e-3,
    label_smoothing=0.02,
    clip=5.0,
    seed=99,
    ckpt="checkpoints/points",
)

SHAPES = {0: "sphere", 1: "disc", 2: "rod", 3: "cube"}


def make_clouds(n, points, rng):
    """Noisy clouds of four shapes under a random rotation about the vertical axis."""
    labels = rng.integers(0, len(SHAPES), n)
    unit = rng.normal(size=(n, points, 3))
    unit /= np.linalg.norm(unit, axis=-1, keepdims=True)
    cube = rng.uniform(-1, 1, (n, points, 3))
    side = rng.integers(0, 3, (n, points, 1))
    np.put_along_axis(cube, side, np.sign(np.take_along_axis(cube, side, -1)), -1)
    disc = unit * np.array([1.3, 1.3, 0.1])
    rod = unit * np.array([0.25, 0.25, 2.0])
    clouds = np.choose(labels[:, None, None], [unit, disc, rod, 0.8 * cube])
    angle = rng.uniform(0, 2 * np.pi, n)
    rotation = np.zeros((n, 3, 3))
    rotation[:, 0, 0] = rotation[:, 1, 1] = np.cos(angle)
    rotation[:, 0, 1], rotation[:, 1, 0] = -np.sin(angle), np.sin(angle)
    rotation[:, 2, 2] = 1
    clouds = clouds @ rotation + 0.05 * rng.normal(size=clouds.shape)
    return clouds.astype(np.float32), labels


def split_clouds(clouds, labels, fraction, rng):
    perm = rng.permutation(len(clouds))
    n_valid = int(fraction * len(clouds))
    clouds = clouds[perm]
    train = {"points": clouds[n_valid:], "labels": labels[n_valid:]}
    valid = {"points": clouds[:n_valid], "labels": labels[:n_valid]}
    return train, valid


class CloudStream(IterableDataset):
    def __init__(self, data, batch_size, shuffle, seed):
        self.data, self.batch_size, self.shuffle = data, batch_size, shuffle
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        index = np.arange(len(self.data["labels"]))
        if self.shuffle:
            self.rng.shuffle(index)
        for start in range(0, len(index), self.batch_size):
            rows = index[start : start + self.batch_size]
            yield {key: torch.from_numpy(value[rows]) for key, value in self.data.items()}


class PointNet(nn.Module):
    def __init__(self, classes, width=64):
        super().__init__()
        self.point_mlp = nn.Sequential(
            nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)
        )
        self.cls = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, classes))

    def forward(self, points):
        per_point = self.point_mlp(points)
        return self.cls(per_point.max(dim=1).values)


def accuracy(model, loader):
    model.eval()
    correct = count = 0
    with torch.no_grad():
        for batch in loader:
            pred = model(batch["points"]).argmax(-1)
            correct += int((pred == batch["labels"]).sum())
            count += pred.numel()
    model.train()
    return correct / count


def main():
    random.seed(cfg.seed)
    torch.manual_seed(cfg.seed)
    rng = np.random.default_rng(cfg.seed)
    clouds, labels = make_clouds(cfg.clouds, cfg.points, rng)
    train, valid = split_clouds(clouds, labels, cfg.valid_fraction, rng)
    train_loader = DataLoader(CloudStream(train, cfg.batch_size, True, cfg.seed), batch_size=None)
    valid_loader = DataLoader(CloudStream(valid, 200, False, cfg.seed), batch_size=None)

    model = PointNet(len(SHAPES))
    criterion = nn.CrossEntropyLoss(label_smoothing=cfg.label_smoothing)
    optimizer = torch.optim.RAdam(model.parameters(), lr=cfg.lr)

    step, smoothed = 0, None
    for epoch in range(cfg.epochs):
        for batch in train_loader:
            logits = model(batch["points"])
            loss = criterion(logits, batch["labels"])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
            optimizer.step()
            step += 1
            smoothed = loss.item() if smoothed is None else 0.95 * smoothed + 0.05 * loss.item()
            if step % 50 == 0:
                print(f"iter {step:5d}  loss {smoothed:.4f}")
        print(f"epoch {epoch}: validation accuracy {accuracy(model, valid_loader):.3f}")
        os.makedirs(cfg.ckpt, exist_ok=True)
        torch.save({"epoch": epoch, "model": model.state_dict()}, os.path.join(cfg.ckpt, "last.pt"))


if __name__ == "__main__":
    main()
