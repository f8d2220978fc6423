"""Glyph classifier: a small residual CNN trained with micro-batches."""

import argparse
import logging
import os
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
log = logging.getLogger("glyphs")


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class GlyphDataset(Dataset):
    """Twelve random glyphs, shifted by one pixel and covered with noise."""

    def __init__(self, size, n_classes=12, side=10, noise=0.3, split="train"):
        shapes = np.random.default_rng(7).random((n_classes, side, side)) > 0.6
        rng = np.random.default_rng({"train": 11, "test": 12}[split])
        self.labels = rng.integers(0, n_classes, size)
        self.images = np.empty((size, 1, side, side), dtype=np.float32)
        for i, label in enumerate(self.labels):
            shift = rng.integers(-1, 2, 2)
            self.images[i, 0] = np.roll(shapes[label], shift, axis=(0, 1))
        self.images += noise * rng.standard_normal(self.images.shape).astype(np.float32)
        self.images = (self.images - 0.4) / 0.6

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return torch.from_numpy(self.images[index]), int(self.labels[index])


class BasicBlock(nn.Module):
    def __init__(self, c_in, c_out, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(4, c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(4, c_out)
        self.skip = nn.Identity() if stride == 1 and c_in == c_out else nn.Conv2d(c_in, c_out, 1, stride=stride)

    def forward(self, x):
        out = F.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return F.relu(out + self.skip(x))


class GlyphNet(nn.Module):
    def __init__(self, n_classes=12, width=8):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.layer1 = BasicBlock(width, width)
        self.layer2 = BasicBlock(width, 2 * width, stride=2)
        self.fc = nn.Linear(2 * width * 25, n_classes)

    def forward(self, x):
        x = self.layer2(self.layer1(F.relu(self.stem(x))))
        return self.fc(x.flatten(1))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    correct = total = 0
    for images, labels in loader:
        correct += (model(images).argmax(1) == labels).sum().item()
        total += len(labels)
    return correct / total


def train_one_epoch(model, loader, optimizer, criterion, epoch, args):
    model.train()
    window_loss, updates = 0.0, 0
    for i, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(model(images), labels) / args.accum_steps
        loss.backward()
        window_loss += loss.item()

        if (i + 1) % args.accum_steps == 0:
            optimizer.step()
            updates += 1
            if updates % args.log_every == 0:
                log.info("epoch %d  update %3d  loss %.4f", epoch, updates, window_loss)
            window_loss = 0.0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--accum-steps", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--out", default="checkpoints")
    args = parser.parse_args()

    seed_everything(args.seed)
    train_set, test_set = GlyphDataset(1920), GlyphDataset(400, split="test")
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=100)

    model = GlyphNet()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)

    started = time.time()
    for epoch in range(args.epochs):
        train_one_epoch(model, train_loader, optimizer, criterion, epoch, args)
        log.info("epoch %d  accuracy %.3f  (%.1f s)", epoch, evaluate(model, test_loader), time.time() - started)

    os.makedirs(args.out, exist_ok=True)
    torch.save({"model": model.state_dict(), "args": vars(args)}, os.path.join(args.out, "glyphs.pt"))


if __name__ == "__main__":
    main()
