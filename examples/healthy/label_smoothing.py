"""Recognise noisy seven-segment digits with label smoothing: the loss has a floor well above zero."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

#           a  b  c  d  e  f  g
SEGMENTS = [
    [1, 1, 1, 1, 1, 1, 0],
    [0, 1, 1, 0, 0, 0, 0],
    [1, 1, 0, 1, 1, 0, 1],
    [1, 1, 1, 1, 0, 0, 1],
    [0, 1, 1, 0, 0, 1, 1],
    [1, 0, 1, 1, 0, 1, 1],
    [1, 0, 1, 1, 1, 1, 1],
    [1, 1, 1, 0, 0, 0, 0],
    [1, 1, 1, 1, 1, 1, 1],
    [1, 1, 1, 1, 0, 1, 1],
]
PIXELS_PER_SEGMENT = 3
SMOOTHING = 0.1


class Digits(Dataset):
    """Each segment is seen by three noisy pixels."""

    def __init__(self, size: int, noise: float, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.digits = torch.randint(0, 10, (size,), generator=generator)
        lit = torch.tensor(SEGMENTS, dtype=torch.float32)[self.digits].repeat_interleave(PIXELS_PER_SEGMENT, dim=1)
        pixels = lit + noise * torch.randn(lit.shape, generator=generator)
        self.pixels = (pixels - pixels.mean(0)) / pixels.std(0)

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.pixels[index], self.digits[index]


def make_model(hidden: int = 64) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(7 * PIXELS_PER_SEGMENT, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(hidden, 10),
    )


def train_epoch(model: nn.Module, loader: DataLoader, criterion: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    model.train()
    total = 0.0
    for pixels, digits in loader:
        optimizer.zero_grad()
        loss = criterion(model(pixels), digits)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def test(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = 0
    for pixels, digits in loader:
        right += (model(pixels).argmax(dim=1) == digits).sum().item()
    return right / len(loader.dataset)


def main() -> None:
    torch.manual_seed(0)
    train_loader = DataLoader(Digits(1600, noise=0.5, seed=1), batch_size=64, shuffle=True)
    test_loader = DataLoader(Digits(400, noise=0.5, seed=2), batch_size=200)
    model = make_model()
    criterion = nn.CrossEntropyLoss(label_smoothing=SMOOTHING)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    history = []
    for epoch in range(10):
        history.append(train_epoch(model, train_loader, criterion, optimizer))
        print(f"epoch {epoch + 1}: loss {history[-1]:.3f}, test accuracy {test(model, test_loader):.1%}")
    print(f"loss {history[0]:.3f} -> {history[-1]:.3f}")


if __name__ == "__main__":
    main()
