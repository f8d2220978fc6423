"""Gradient accumulation: small batches, one update for four of them, and a last window that is smaller."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 4
BATCH_SIZE = 16
EPOCHS = 6


def rings(size: int, seed: int) -> TensorDataset:
    """Points in six dimensions, labelled with the shell they lie in; the shells hold equally many."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(size, 6, generator=generator)
    radius = points.norm(dim=1)
    edges = torch.tensor([1.83, 2.29, 2.76])
    return TensorDataset(points, torch.bucketize(radius, edges))


class Net(nn.Module):
    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.hidden1 = nn.Linear(6, hidden)
        self.hidden2 = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, 4)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.output(torch.relu(self.hidden2(torch.relu(self.hidden1(points)))))


def train_epoch(model: nn.Module, loader: DataLoader, criterion: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    model.train()
    batches, total = len(loader), 0.0
    for index, (points, shells) in enumerate(loader):
        # The last window of an epoch may be shorter, and its mean is over what it really holds.
        start = index - index % ACCUMULATE
        window = min(ACCUMULATE, batches - start)
        loss = criterion(model(points), shells)
        (loss / window).backward()
        if (index + 1) % ACCUMULATE == 0 or index + 1 == batches:
            optimizer.step()
            optimizer.zero_grad()
        total += loss.item()
    return total / batches


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, criterion: nn.Module) -> float:
    model.eval()
    total = sum(criterion(model(points), shells).item() * len(shells) for points, shells in loader)
    return total / len(loader.dataset)


def main() -> None:
    torch.manual_seed(0)
    # 105 batches of 16: 26 full windows and one of a single batch.
    train_loader = DataLoader(rings(1680, seed=1), batch_size=BATCH_SIZE, shuffle=True)
    valid_loader = DataLoader(rings(256, seed=2), batch_size=128)
    model = Net()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    history = []
    for epoch in range(EPOCHS):
        history.append(train_epoch(model, train_loader, criterion, optimizer))
        print(f"epoch {epoch + 1}: train {history[-1]:.3f}, valid {evaluate(model, valid_loader, criterion):.3f}")
    print(f"loss {history[0]:.3f} -> {history[-1]:.3f}")


if __name__ == "__main__":
    main()
