import argparse
import time
from collections import defaultdict
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split


def synth_blobs(n, size=20, seed=0):
    """Grey images with a bright disc and a bright bar; the mask marks the disc only."""
    gen = torch.Generator().manual_seed(seed)
    ys, xs = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    cy, cx = (torch.rand(2, n, 1, 1, generator=gen) * (size - 10) + 5).unbind(0)
    radius = 2.5 + 2.5 * torch.rand(n, 1, 1, generator=gen)
    disc = ((ys - cy) ** 2 + (xs - cx) ** 2) < radius**2
    row = torch.randint(0, size - 2, (n, 1, 1), generator=gen)
    bar = (ys >= row) & (ys < row + 2)
    img = 0.3 * torch.randn(n, size, size, generator=gen) + disc.float() + 0.8 * bar.float().expand(n, -1, -1)
    return img.unsqueeze(1), disc.float().unsqueeze(1)


class DoubleConv(nn.Sequential):
    def __init__(self, a, b):
        super().__init__(
            nn.Conv2d(a, b, 3, padding=1, bias=False),
            nn.BatchNorm2d(b),
            nn.ReLU(inplace=True),
            nn.Conv2d(b, b, 3, padding=1, bias=False),
            nn.BatchNorm2d(b),
            nn.ReLU(inplace=True),
        )


class SmallUNet(nn.Module):
    def __init__(self, base=6):
        super().__init__()
        self.enc1 = DoubleConv(1, base)
        self.enc2 = DoubleConv(base, 2 * base)
        self.bottom = DoubleConv(2 * base, 4 * base)
        self.up2 = nn.ConvTranspose2d(4 * base, 2 * base, 2, stride=2)
        self.dec2 = DoubleConv(4 * base, 2 * base)
        self.up1 = nn.ConvTranspose2d(2 * base, base, 2, stride=2)
        self.dec1 = DoubleConv(2 * base, base)
        self.out = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        e1 = self.enc1(x)
        e2 = self.enc2(F.max_pool2d(e1, 2))
        b = self.bottom(F.max_pool2d(e2, 2))
        d2 = self.dec2(torch.cat([self.up2(b), e2], dim=1))
        d1 = self.dec1(torch.cat([self.up1(d2), e1], dim=1))
        return self.out(d1)


def dice(logits, mask, eps=1.0):
    pred = (logits > 0).float()
    inter = (pred * mask).sum((1, 2, 3))
    return ((2 * inter + eps) / (pred.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + eps)).mean()


class Trainer:
    def __init__(self, model, optimizer, train_loader, val_loader, save_dir, print_freq=27):
        self.model = model
        self.optimizer = optimizer
        self.train_loader = train_loader
        self.val_loader = val_loader
        self.save_dir = Path(save_dir)
        self.print_freq = print_freq
        self.global_step = 0
        self.meters = defaultdict(list)

    def compute_loss(self, batch):
        image, mask = batch
        return F.binary_cross_entropy_with_logits(self.model(image), mask)

    def backward(self, loss):
        loss.backward()

    def update_weights(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def training_step(self, batch):
        loss = self.compute_loss(batch)
        self.backward(loss)
        self.update_weights()
        return loss.item()

    def train_epoch(self):
        self.model.train()
        for batch in self.train_loader:
            loss = self.training_step(batch)
            self.meters["loss"].append(loss)
            self.global_step += 1
            if self.global_step % self.print_freq == 0:
                recent = self.meters["loss"][-self.print_freq :]
                print(f"  step {self.global_step:4d}  bce {sum(recent) / len(recent):.4f}")

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        scores = [dice(self.model(image), mask).item() for image, mask in self.val_loader]
        return sum(scores) / len(scores)

    def save(self, name):
        self.save_dir.mkdir(parents=True, exist_ok=True)
        torch.save({"model": self.model.state_dict(), "step": self.global_step}, self.save_dir / name)

    def fit(self, epochs):
        start = time.time()
        for epoch in range(1, epochs + 1):
            self.train_epoch()
            print(f"epoch {epoch}/{epochs}  dice {self.validate():.3f}  ({time.time() - start:.1f}s)")
        self.save("unet_last.pt")


def main():
    parser = argparse.ArgumentParser(description="Disc segmentation")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--bs", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--save-dir", default="checkpoints")
    opt = parser.parse_args()

    torch.manual_seed(0)
    full = TensorDataset(*synth_blobs(1500))
    train_set, val_set = random_split(full, [1300, 200])
    model = SmallUNet()
    trainer = Trainer(
        model,
        torch.optim.RMSprop(model.parameters(), lr=opt.lr),
        DataLoader(train_set, batch_size=opt.bs, shuffle=True, drop_last=True),
        DataLoader(val_set, batch_size=50),
        opt.save_dir,
    )
    trainer.fit(opt.epochs)


if __name__ == "__main__":
    main()
