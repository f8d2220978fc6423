"""Transfer learning: a frozen, pretrained backbone with BatchNorm, and a fresh head for another task."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES = 48


def tones(size: int, frequencies: list[float], seed: int) -> TensorDataset:
    """Noisy waves, each labelled with its frequency; standardised."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, len(frequencies), (size,), generator=generator)
    phase = 2 * math.pi * torch.rand(size, 1, generator=generator)
    turns = torch.tensor(frequencies)[labels].unsqueeze(1) * torch.arange(SAMPLES) / SAMPLES
    signals = torch.sin(2 * math.pi * turns + phase) + 0.3 * torch.randn(size, SAMPLES, generator=generator)
    return TensorDataset((signals / signals.std()).unsqueeze(1), labels)


class Backbone(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.width = width
        self.conv1 = nn.Conv1d(1, width, 7, padding=3, bias=False)
        self.bn1 = nn.BatchNorm1d(width)
        self.conv2 = nn.Conv1d(width, width, 5, padding=2, bias=False)
        self.bn2 = nn.BatchNorm1d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool1d(F.relu(self.bn1(self.conv1(x))), 2)
        return F.relu(self.bn2(self.conv2(x))).mean(2)


class Classifier(nn.Module):
    def __init__(self, backbone: Backbone, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(backbone.width, classes)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def pretrain(backbone: Backbone) -> None:
    """Learn features by telling six whole frequencies apart."""
    loader = DataLoader(tones(960, [1, 2, 3, 5, 7, 9], seed=1), batch_size=32, shuffle=True)
    model = Classifier(backbone, classes=6)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model.train()
    for _ in range(3):
        for batch, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(batch), labels).backward()
            optimizer.step()


def finetune(model: Classifier, train_loader: DataLoader, test_loader: DataLoader, epochs: int) -> list[float]:
    model.backbone.requires_grad_(False)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-2)
    losses = []
    for epoch in range(epochs):
        model.train()
        # Frozen means also that BatchNorm keeps the statistics it was pretrained with.
        model.backbone.eval()
        for signals, labels in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(signals), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: loss {losses[-1]:.3f}, test accuracy {evaluate(model, test_loader):.1%}")
    return losses


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = sum((model(signals).argmax(1) == labels).sum().item() for signals, labels in loader)
    return right / len(loader.dataset)


def main() -> None:
    torch.manual_seed(0)
    backbone = Backbone()
    pretrain(backbone)
    others = [1.5, 2.5, 4.0, 6.0]
    train_loader = DataLoader(tones(768, others, seed=2), batch_size=32, shuffle=True)
    test_loader = DataLoader(tones(256, others, seed=3), batch_size=128)
    losses = finetune(Classifier(backbone, classes=4), train_loader, test_loader, epochs=8)
    print(f"loss {sum(losses[:5]) / 5:.3f} -> {sum(losses[-20:]) / 20:.3f}")


if __name__ == "__main__":
    main()
