import csv
import os
from collections import namedtuple

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

Settings = namedtuple("Settings", "per_class test_per_class batch_size epochs lr weight_decay seed outdir")
SETTINGS = Settings(
    per_class=80, test_per_class=20, batch_size=16, epochs=12, lr=0.03, weight_decay=1e-4, seed=21, outdir="runs/glyphs"
)
GLYPHS = ("bar", "pole", "slash", "backslash", "cross", "frame", "dot", "corner")


def draw(glyph, rng, size=14):
    canvas = np.zeros((size, size), dtype=np.float32)
    a, b = rng.integers(3, size - 3, 2)
    i = np.arange(size)
    if glyph in ("bar", "cross"):
        canvas[a, 1:-1] = 1
    if glyph in ("pole", "cross"):
        canvas[1:-1, b] = 1
    if glyph == "slash":
        canvas[i, np.clip(size - 1 - i + a - size // 2, 0, size - 1)] = 1
    if glyph == "backslash":
        canvas[i, np.clip(i + a - size // 2, 0, size - 1)] = 1
    if glyph == "frame":
        half = int(rng.integers(3, 6))
        lo, hi = size // 2 - half, size // 2 + half
        canvas[[lo, hi], lo : hi + 1] = 1
        canvas[lo : hi + 1, [lo, hi]] = 1
    if glyph == "dot":
        canvas[a - 1 : a + 2, b - 1 : b + 2] = 1
    if glyph == "corner":
        canvas[a, b:] = 1
        canvas[a:, b] = 1
    return canvas + rng.normal(0, 0.15, canvas.shape).astype(np.float32)


class GlyphFolder(Dataset):
    """Reads the glyphs as they lie on disk, one folder per class."""

    def __init__(self, per_class, seed, transform=None):
        rng = np.random.default_rng(seed)
        self.transform = transform
        self.items = []
        for label, glyph in enumerate(GLYPHS):
            for _ in range(per_class):
                self.items.append((draw(glyph, rng), label))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        image, label = self.items[index]
        image = torch.from_numpy(image).unsqueeze(0)
        if self.transform is not None:
            image = self.transform(image)
        return image, label


class ResidualBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm2 = nn.GroupNorm(4, channels)

    def forward(self, x):
        out = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(out)))


class GlyphNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU())
        self.block = ResidualBlock(16)
        self.down = nn.Conv2d(16, 24, 3, stride=2, padding=1)
        self.fc = nn.Linear(24 * 16, classes)

    def forward(self, x):
        x = torch.relu(self.down(self.block(self.stem(x))))
        return self.fc(x.flatten(1))


def build_loader(dataset, batch_size, train):
    return DataLoader(dataset, batch_size=batch_size, drop_last=train)


def evaluate(model, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for images, labels in loader:
            right += (model(images).argmax(dim=1) == labels).sum().item()
    return right / len(loader.dataset)


def run(s):
    torch.manual_seed(s.seed)
    train_loader = build_loader(GlyphFolder(s.per_class, s.seed), s.batch_size, train=True)
    test_loader = build_loader(GlyphFolder(s.test_per_class, s.seed + 1), 80, train=False)

    model = GlyphNet(len(GLYPHS))
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=s.lr, momentum=0.9, weight_decay=s.weight_decay)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[8, 10], gamma=0.3)

    os.makedirs(s.outdir, exist_ok=True)
    with open(os.path.join(s.outdir, "log.csv"), "w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(["epoch", "loss", "accuracy"])
        for epoch in range(s.epochs):
            model.train()
            total = 0.0
            for images, labels in train_loader:
                optimizer.zero_grad()
                loss = loss_fn(model(images), labels)
                loss.backward()
                optimizer.step()
                total += loss.item() * labels.size(0)
            scheduler.step()
            mean_loss = total / len(train_loader.dataset)
            accuracy = evaluate(model, test_loader)
            writer.writerow([epoch, f"{mean_loss:.5f}", f"{accuracy:.4f}"])
            print(f"epoch {epoch:2d} | loss {mean_loss:.4f} | test acc {accuracy:.3f}")
    torch.save(model.state_dict(), os.path.join(s.outdir, "glyphnet.pth"))


if __name__ == "__main__":
    run(SETTINGS)
