"""Heartbeat classification from single-lead recordings with a 1-D convolutional network."""

import argparse
import math
import os

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset, random_split

BEATS = ("normal", "premature", "flutter", "blocked")
SAMPLE_RATE = 120


def bump(t, centre, width):
    return torch.exp(-(((t - centre) / width) ** 2))


def synth_beat(kind, gen):
    t = torch.linspace(0, 1, SAMPLE_RATE)
    jitter = 0.04 * torch.randn(1, generator=gen)
    beat = 0.2 * bump(t, 0.25 + jitter, 0.04) + bump(t, 0.45 + jitter, 0.02) + 0.3 * bump(t, 0.7 + jitter, 0.06)
    if kind == "premature":
        beat = beat + 0.8 * bump(t, 0.85 + jitter, 0.05)
    elif kind == "flutter":
        phase = 6.28 * torch.rand(1, generator=gen)
        beat = beat + 0.25 * torch.sin(2 * math.pi * 7 * t + phase)
    elif kind == "blocked":
        beat = beat - 0.7 * bump(t, 0.45 + jitter, 0.03)
    return beat + 0.1 * torch.randn(SAMPLE_RATE, generator=gen)


def build_dataset(size, seed):
    gen = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, len(BEATS), (size,), generator=gen)
    beats = torch.stack([synth_beat(BEATS[label], gen) for label in labels.tolist()])
    beats = (beats - beats.mean()) / beats.std()
    return TensorDataset(beats.unsqueeze(1), labels)


class ConvStage(nn.Sequential):
    def __init__(self, c_in, c_out, kernel):
        super().__init__(
            nn.Conv1d(c_in, c_out, kernel, bias=False),
            nn.BatchNorm1d(c_out),
            nn.ReLU(),
            nn.MaxPool1d(2),
        )


class BeatNet(nn.Module):
    def __init__(self, n_classes, width=16, dropout=0.1):
        super().__init__()
        self.features = nn.Sequential(
            ConvStage(1, width, 7),
            ConvStage(width, 2 * width, 5),
            ConvStage(2 * width, 2 * width, 3),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(2 * width * 12, 48),
            nn.ReLU(),
            nn.Linear(48, n_classes),
        )

    def forward(self, x):
        return self.classifier(self.features(x))


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def add(self, value, n=1):
        self.total += value * n
        self.count += n

    @property
    def mean(self):
        return self.total / max(1, self.count)


def run_epoch(model, loader, criterion, optimizer=None):
    training = optimizer is not None
    model.train(training)
    losses, hits = Meter(), Meter()
    with torch.set_grad_enabled(training):
        for beats, labels in loader:
            scores = model(beats)
            loss = criterion(scores, labels)
            if training:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses.add(loss.item(), len(labels))
            hits.add((scores.argmax(1) == labels).float().mean().item(), len(labels))
    return losses.mean, hits.mean


def main():
    parser = argparse.ArgumentParser(description="train BeatNet")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--size", type=int, default=2400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="checkpoints/beatnet.pt")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    dataset = build_dataset(args.size, args.seed)
    train_set, test_set = random_split(dataset, [0.85, 0.15])
    train_loader = DataLoader(train_set, args.batch, shuffle=True, drop_last=True)
    test_loader = DataLoader(test_set, 120)

    model = BeatNet(len(BEATS))
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = optim.lr_scheduler.MultiStepLR(optimizer, milestones=[5, 7], gamma=0.2)

    for epoch in range(args.epochs):
        train_loss, train_acc = run_epoch(model, train_loader, criterion, optimizer)
        test_loss, test_acc = run_epoch(model, test_loader, criterion)
        scheduler.step()
        print(f"{epoch:2d}  train {train_loss:.4f} / {train_acc:.3f}   test {test_loss:.4f} / {test_acc:.3f}")

    os.makedirs(os.path.dirname(args.out), exist_ok=True)
    torch.save(model.state_dict(), args.out)


if __name__ == "__main__":
    main()
