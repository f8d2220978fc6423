"""Tell three interleaved spiral arms apart with a small multilayer perceptron."""

import argparse
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

ARMS = 3


def spirals(size: int, generator: torch.Generator) -> TensorDataset:
    """Points on three noisy spiral arms, standardised, each labelled with its arm."""
    arm = torch.randint(0, ARMS, (size,), generator=generator)
    radius = torch.rand(size, generator=generator).sqrt()
    angle = 4 * radius + 2 * math.pi * arm / ARMS + 0.15 * torch.randn(size, generator=generator)
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return TensorDataset((points - points.mean(0)) / points.std(0), arm)


class MLP(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, ARMS),
        )

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.layers(points)


def train_epoch(model: nn.Module, loader: DataLoader, criterion: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    model.train()
    total = 0.0
    for points, arm in loader:
        optimizer.zero_grad()
        loss = criterion(model(points), arm)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(arm)
    return total / len(loader.dataset)


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = sum((model(points).argmax(1) == arm).sum().item() for points, arm in loader)
    return right / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    train_set, valid_set = random_split(spirals(1200, generator), [1000, 200], generator=generator)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    valid_loader = DataLoader(valid_set, batch_size=200)

    model = MLP(args.hidden)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    losses = []
    for epoch in range(args.epochs):
        losses.append(train_epoch(model, train_loader, criterion, optimizer))
        print(f"epoch {epoch + 1}: loss {losses[-1]:.3f}, validation accuracy {accuracy(model, valid_loader):.1%}")
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
