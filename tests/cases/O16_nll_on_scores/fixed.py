"""Classify 12x12 glyphs (made of random strokes) with a small residual network."""

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split


@dataclass
class Settings:
    classes: int = 10
    samples: int = 3000
    side: int = 12
    width: int = 12
    depth: int = 3
    batch_size: int = 64
    epochs: int = 9
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 1e-4
    seed: int = 0
    out: Path = Path("runs") / "glyphs"


def build_glyphs(settings: Settings) -> TensorDataset:
    generator = torch.Generator().manual_seed(settings.seed)
    prototypes = (torch.rand(settings.classes, 1, settings.side, settings.side, generator=generator) > 0.6).float()
    labels = torch.randint(settings.classes, (settings.samples,), generator=generator)
    images = prototypes[labels]
    shifts = torch.randint(-1, 2, (settings.samples, 2), generator=generator)
    images = torch.stack([image.roll(tuple(s.tolist()), (1, 2)) for image, s in zip(images, shifts, strict=True)])
    images = images + 0.5 * torch.randn(images.shape, generator=generator)
    images = (images - images.mean()) / images.std()
    return TensorDataset(images, labels)


class Residual(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(out)))


class GlyphNet(nn.Module):
    def __init__(self, settings: Settings):
        super().__init__()
        self.stem = nn.Conv2d(1, settings.width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(Residual(settings.width) for _ in range(settings.depth))
        self.fc = nn.Linear(settings.width * (settings.side // 2) ** 2, settings.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return F.log_softmax(self.fc(x.flatten(1)), dim=1)


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def add(self, value: float, n: int) -> None:
        self.total += value * n
        self.count += n

    @property
    def mean(self) -> float:
        return self.total / max(1, self.count)


def fit_epoch(net: nn.Module, loader: DataLoader, loss_fn: nn.Module, opt: optim.Optimizer) -> tuple[float, float]:
    net.train()
    loss_meter, acc_meter = Meter(), Meter()
    for images, labels in loader:
        opt.zero_grad()
        output = net(images)
        loss = loss_fn(output, labels)
        loss.backward()
        opt.step()
        loss_meter.add(loss.item(), len(labels))
        acc_meter.add((output.argmax(1) == labels).float().mean().item(), len(labels))
    return loss_meter.mean, acc_meter.mean


@torch.inference_mode()
def test(net: nn.Module, loader: DataLoader) -> float:
    net.eval()
    meter = Meter()
    for images, labels in loader:
        meter.add((net(images).argmax(1) == labels).float().mean().item(), len(labels))
    return meter.mean


def main(settings: Settings) -> None:
    torch.manual_seed(settings.seed)
    data = build_glyphs(settings)
    train_set, test_set = random_split(data, [0.85, 0.15])
    train_loader = DataLoader(train_set, batch_size=settings.batch_size, shuffle=True, drop_last=True)
    test_loader = DataLoader(test_set, batch_size=200)

    net = GlyphNet(settings)
    loss_fn = nn.NLLLoss()
    opt = optim.SGD(net.parameters(), lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay)
    schedule = optim.lr_scheduler.StepLR(opt, step_size=3, gamma=0.3)

    settings.out.mkdir(parents=True, exist_ok=True)
    for epoch in range(settings.epochs):
        began = perf_counter()
        train_loss, train_acc = fit_epoch(net, train_loader, loss_fn, opt)
        test_acc = test(net, test_loader)
        schedule.step()
        print(
            f"epoch {epoch}: loss {train_loss:.4f}, train acc {train_acc:.3f}, test acc {test_acc:.3f}, "
            f"{perf_counter() - began:.1f} s"
        )
        torch.save(net.state_dict(), settings.out / f"epoch_{epoch}.pt")


if __name__ == "__main__":
    main(Settings())
