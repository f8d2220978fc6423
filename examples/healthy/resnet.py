"""Recognise coloured textures, wherever they begin, with a small residual network."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 8
SIDE = 12
EPOCHS = 5


class Textures(Dataset):
    """A texture of its class, rolled to a random place, under noise."""

    def __init__(self, size: int, seed: int) -> None:
        coarse = torch.randn(CLASSES, 3, SIDE // 3, SIDE // 3, generator=torch.Generator().manual_seed(42))
        textures = F.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear")
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, CLASSES, (size,), generator=generator)
        shifts = torch.randint(0, SIDE, (size, 2), generator=generator).tolist()
        rolled = [
            torch.roll(textures[label], shift, dims=(1, 2))
            for label, shift in zip(self.labels.tolist(), shifts, strict=True)
        ]
        images = torch.stack(rolled)
        images = images + 0.5 * torch.randn(images.shape, generator=generator)
        mean, std = images.mean((0, 2, 3), keepdim=True), images.std((0, 2, 3), keepdim=True)
        self.images = (images - mean) / std

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.layers = nn.Sequential(
            BasicBlock(width, width),
            BasicBlock(width, 2 * width, stride=2),
            BasicBlock(2 * width, 4 * width, stride=2),
        )
        self.fc = nn.Linear(4 * width, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.layers(self.stem(images))
        return self.fc(F.adaptive_avg_pool2d(features, 1).flatten(1))


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Weight decay for matrices and kernels, none for biases and normalisation."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def validate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = 0
    with torch.no_grad():
        for images, labels in loader:
            right += (model(images).argmax(1) == labels).sum().item()
    return right / len(loader.dataset)


def main() -> None:
    torch.manual_seed(0)
    train_loader = DataLoader(Textures(1024, seed=1), batch_size=32, shuffle=True)
    valid_loader = DataLoader(Textures(128, seed=2), batch_size=64)
    model = ResNet()
    optimizer = torch.optim.SGD(decay_groups(model, 5e-4), lr=0.03, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.03, epochs=EPOCHS, steps_per_epoch=len(train_loader)
    )
    losses: list[float] = []
    for epoch in range(EPOCHS):
        model.train()
        for images, labels in train_loader:
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: loss {losses[-1]:.3f}, validation accuracy {validate(model, valid_loader):.1%}")
    print(f"loss {sum(losses[:10]) / 10:.3f} -> {sum(losses[-10:]) / 10:.3f}")


if __name__ == "__main__":
    main()
