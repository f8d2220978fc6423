"""Recognise the direction of stripes in noisy images with a convolutional network and batch normalisation."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIDE = 16
DIRECTIONS = 6
EPOCHS = 5
BATCH_SIZE = 32


def striped_images(size: int, seed: int) -> TensorDataset:
    """Grey images of stripes under noise, labelled with the direction of the stripes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, DIRECTIONS, (size,), generator=generator)
    angle = (math.pi * labels / DIRECTIONS).view(-1, 1, 1)
    phase = 2 * math.pi * torch.rand(size, 1, 1, generator=generator)
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    along = columns * angle.cos() + rows * angle.sin()
    images = torch.sin(1.2 * along + phase) + 1.2 * torch.randn(size, SIDE, SIDE, generator=generator)
    return TensorDataset(images.unsqueeze(1), labels)


def block(inputs: int, outputs: int) -> nn.Sequential:
    # BatchNorm has its own offset, so the convolution needs none.
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )


class StripeNet(nn.Module):
    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.features = nn.Sequential(block(1, width), block(width, 2 * width), block(2 * width, 2 * width))
        self.dropout = nn.Dropout(0.2)
        self.classify = nn.Linear(2 * width * (SIDE // 8) ** 2, DIRECTIONS)
        # Small logits at first: the loss then begins at that of a fair guess.
        nn.init.normal_(self.classify.weight, std=0.01)
        nn.init.zeros_(self.classify.bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classify(self.dropout(self.features(images).flatten(1)))


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, criterion: nn.Module) -> tuple[float, float]:
    model.eval()
    loss, right = 0.0, 0
    for images, labels in loader:
        logits = model(images)
        loss += criterion(logits, labels).item() * len(labels)
        right += (logits.argmax(1) == labels).sum().item()
    return loss / len(loader.dataset), right / len(loader.dataset)


def main() -> None:
    torch.manual_seed(0)
    train_loader = DataLoader(striped_images(960, seed=1), batch_size=BATCH_SIZE, shuffle=True)
    valid_loader = DataLoader(striped_images(200, seed=2), batch_size=100)

    model = StripeNet()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)

    history = []
    for epoch in range(EPOCHS):
        model.train()
        total = 0.0
        for images, labels in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
        history.append(total / len(train_loader.dataset))
        valid_loss, valid_accuracy = evaluate(model, valid_loader, criterion)
        scheduler.step()
        print(f"epoch {epoch + 1}: train {history[-1]:.3f}, valid {valid_loss:.3f}, accuracy {valid_accuracy:.1%}")
    print(f"loss {history[0]:.3f} -> {history[-1]:.3f}")


if __name__ == "__main__":
    main()
