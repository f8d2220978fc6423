import argparse
import os
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class GlyphDataset(Dataset):
    """Blurred, shifted glyphs on a small canvas. Every class has its own stroke pattern."""

    def __init__(self, n, side=16, n_glyphs=24, seed=0):
        rng = np.random.default_rng(seed)
        strokes = np.random.default_rng(7).random((n_glyphs, 8, 8)) > 0.65
        self.classes = [f"glyph_{i:02d}" for i in range(n_glyphs)]
        self.y = rng.integers(0, n_glyphs, n)
        canvas = 0.25 * rng.standard_normal((n, side, side))
        for i, label in enumerate(self.y):
            r, c = rng.integers(2, side - 9, 2)
            canvas[i, r : r + 8, c : c + 8] += strokes[label]
        self.x = canvas.astype(np.float32)[:, None]

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return torch.from_numpy(self.x[i]), int(self.y[i])


class ConvBlock(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(cout)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class TinyNet(nn.Module):
    def __init__(self, num_classes=1000, width=16):
        super().__init__()
        self.stem = ConvBlock(1, width)
        self.layer1 = ConvBlock(width, 2 * width, stride=2)
        self.layer2 = ConvBlock(2 * width, 4 * width, stride=2)
        self.fc = nn.Sequential(nn.Linear(4 * width * 16, 64), nn.ReLU(), nn.Linear(64, num_classes))

    def features(self, x):
        return self.layer2(self.layer1(self.stem(x))).flatten(1)

    def forward(self, x):
        return self.fc(self.features(x))


def reset_classifier(model, num_classes, hidden):
    in_features = model.fc[0].in_features
    model.fc = nn.Sequential(nn.Linear(in_features, hidden), nn.ReLU(), nn.Linear(hidden, num_classes))
    return model


def make_optimizer(model, args):
    head = list(model.fc.parameters())
    head_ids = {id(p) for p in head}
    body = [p for p in model.parameters() if id(p) not in head_ids]
    return torch.optim.SGD(
        [{"params": body, "lr": args.lr * args.body_lr_mult}, {"params": head}], lr=args.lr, momentum=0.9
    )


@torch.no_grad()
def validate(model, loader, device):
    model.eval()
    correct, total = 0, 0
    for x, y in loader:
        pred = model(x.to(device)).argmax(1).cpu()
        correct += (pred == y).sum().item()
        total += y.numel()
    return correct / total


def train_one_epoch(model, loader, optimizer, device, log_every):
    model.train()
    running = 0.0
    for it, (x, y) in enumerate(loader, 1):
        x, y = x.to(device), y.to(device)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item()
        if it % log_every == 0:
            print(f"    iter {it:4d}/{len(loader)}  loss {loss.item():.4f}")
    return running / len(loader)


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--batch-size", type=int, default=48)
    p.add_argument("--lr", type=float, default=0.03)
    p.add_argument("--body-lr-mult", type=float, default=0.1)
    p.add_argument("--hidden", type=int, default=128)
    p.add_argument("--train-size", type=int, default=3600)
    p.add_argument("--log-every", type=int, default=25)
    p.add_argument("--seed", type=int, default=17)
    p.add_argument("--out", default="checkpoints")
    return p.parse_args()


def main():
    args = parse_args()
    seed_everything(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_set = GlyphDataset(args.train_size, seed=1)
    val_set = GlyphDataset(600, seed=2)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=200)

    model = TinyNet()
    model = model.to(device)
    model = reset_classifier(model, len(train_set.classes), args.hidden).to(device)
    optimizer = make_optimizer(model, args)
    print(f"{len(train_set.classes)} classes, {sum(p.numel() for p in model.parameters()):,} parameters")

    best = 0.0
    for epoch in range(1, args.epochs + 1):
        loss = train_one_epoch(model, train_loader, optimizer, device, args.log_every)
        acc = validate(model, val_loader, device)
        print(f"epoch {epoch}  train loss {loss:.4f}  val acc {acc:.3f}")
        if acc > best:
            best = acc
            os.makedirs(args.out, exist_ok=True)
            torch.save({"model": model.state_dict(), "acc": acc, "epoch": epoch}, os.path.join(args.out, "glyphs.pt"))
    print(f"best val acc {best:.3f}")


if __name__ == "__main__":
    main()
