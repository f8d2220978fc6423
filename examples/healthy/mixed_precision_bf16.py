"""Classification of noisy tabular clusters under bfloat16 autocast; the weights stay in float32."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

CLASSES = 10
FEATURES = 24


def clusters(size: int, generator: torch.Generator) -> TensorDataset:
    """Two clusters per class, so that no linear model can tell the classes apart."""
    centres = torch.randn(CLASSES, 2, FEATURES, generator=generator)
    labels = torch.randint(0, CLASSES, (size,), generator=generator)
    which = torch.randint(0, 2, (size,), generator=generator)
    features = centres[labels, which] + 0.8 * torch.randn(size, FEATURES, generator=generator)
    return TensorDataset((features - features.mean(0)) / features.std(0), labels)


class Net(nn.Module):
    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(FEATURES, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(hidden, CLASSES),
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.net(features)


def train(model: nn.Module, loader: DataLoader, criterion: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    model.train()
    losses = []
    for features, labels in loader:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(features)
            loss = criterion(logits, labels)
        # bfloat16 has the range of float32: no loss scaling is needed.
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = 0
    for features, labels in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            right += (model(features).argmax(1) == labels).sum().item()
    return right / len(loader.dataset)


def main() -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    train_set, test_set = random_split(clusters(2304, generator), [2048, 256], generator=generator)
    train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=128)
    model = Net()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses = []
    for epoch in range(7):
        losses += train(model, train_loader, criterion, optimizer)
        print(f"epoch {epoch + 1}: loss {losses[-1]:.3f}, test accuracy {accuracy(model, test_loader):.1%}")
    print(f"loss {sum(losses[:5]) / 5:.3f} -> {sum(losses[-20:]) / 20:.3f}")


if __name__ == "__main__":
    main()
