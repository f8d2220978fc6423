"""Recognise which of twenty tones a noisy recording holds, with a small 1-D convolutional network.

The data is made on the fly, the script runs in a few seconds on a CPU, and its loss does not move. Find out why:

    unstuck run examples/stuck/train.py
"""

import argparse
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split

TONES = 20
SAMPLES = 128


class Recordings(Dataset):
    """Sine waves of one of twenty frequencies, at a random phase and loudness, under noise."""

    def __init__(self, size: int, noise: float, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, TONES, (size,), generator=generator)
        time = torch.arange(SAMPLES) / SAMPLES
        phase = 2 * math.pi * torch.rand(size, 1, generator=generator)
        loudness = 0.5 + torch.rand(size, 1, generator=generator)
        frequency = (self.labels + 3).unsqueeze(1)
        waves = loudness * torch.sin(2 * math.pi * frequency * time + phase)
        self.waves = (waves + noise * torch.randn(size, SAMPLES, generator=generator)).unsqueeze(1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.waves[index], self.labels[index]


class ToneNet(nn.Module):
    """Three convolutions, then a linear layer over all positions."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            self.block(1, width, 9),
            self.block(width, 2 * width, 5),
            self.block(2 * width, 2 * width, 5),
        )
        self.dropout = nn.Dropout(0.1)
        self.classify = nn.Linear(2 * width * SAMPLES // 8, classes)

    @staticmethod
    def block(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv1d(inputs, outputs, kernel, padding=kernel // 2),
            nn.BatchNorm1d(outputs),
            nn.ReLU(),
            nn.MaxPool1d(2),
        )

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        features = self.features(waves).flatten(1)
        scores = self.classify(self.dropout(features))
        return torch.softmax(scores, dim=1)


def train_epoch(model: nn.Module, loader: DataLoader, criterion: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    model.train()
    total = 0.0
    for waves, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(waves), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item() * len(labels)
    return total / len(loader.dataset)


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    correct = sum((model(waves).argmax(1) == labels).sum().item() for waves, labels in loader)
    return correct / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--noise", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    recordings = Recordings(1280, args.noise, args.seed)
    train_set, test_set = random_split(recordings, [1024, 256])
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=256)

    model = ToneNet(args.width, TONES)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(1, args.epochs + 1):
        loss = train_epoch(model, train_loader, criterion, optimizer)
        print(f"epoch {epoch}  loss {loss:.4f}  test accuracy {accuracy(model, test_loader):.1%}")


if __name__ == "__main__":
    main()
