"""Denoising autoencoder for short vibration traces. Small batches, gradients gathered over a window."""

import argparse
import json
import math
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def get_args():
    p = argparse.ArgumentParser(description="denoise vibration traces")
    p.add_argument("--traces", type=int, default=2048)
    p.add_argument("--points", type=int, default=64)
    p.add_argument("--code", type=int, default=12)
    p.add_argument("--micro-batch", type=int, default=8)
    p.add_argument("--grad-accum", type=int, default=16)
    p.add_argument("--epochs", type=int, default=19)
    p.add_argument("--lr", type=float, default=0.1)
    p.add_argument("--noise", type=float, default=0.3)
    p.add_argument("--seed", type=int, default=3)
    p.add_argument("--save-dir", type=str, default="./checkpoints")
    return p.parse_args()


def make_traces(n, points):
    t = torch.linspace(0, 1, points)
    freq = torch.randint(1, 5, (n, 2, 1)).float()
    phase = 2 * math.pi * torch.rand(n, 2, 1)
    amplitude = 0.5 + torch.rand(n, 2, 1)
    return (amplitude * torch.sin(2 * math.pi * freq * t + phase)).sum(1)


class Denoiser(nn.Module):
    def __init__(self, points, code, hidden=96):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(points, hidden), nn.ReLU(), nn.Linear(hidden, code))
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, points))

    def forward(self, noisy):
        return self.decoder(self.encoder(noisy))


def corrupt(clean, noise):
    return clean + noise * torch.randn_like(clean)


def evaluate(net, loader, noise):
    net.eval()
    total, seen = 0.0, 0
    with torch.no_grad():
        for (clean,) in loader:
            total += nn.functional.mse_loss(net(corrupt(clean, noise)), clean).item() * len(clean)
            seen += len(clean)
    net.train()
    return total / seen


def train_epoch(net, loader, opt, args):
    criterion = nn.MSELoss()
    window_losses, epoch_losses = [], []
    opt.zero_grad()
    for i, (clean,) in enumerate(loader):
        loss = criterion(net(corrupt(clean, args.noise)), clean)
        loss.backward()
        window_losses.append(loss.item())
        if (i + 1) % args.grad_accum == 0:
            opt.step()
            opt.zero_grad()
            epoch_losses.append(sum(window_losses) / len(window_losses))
            window_losses.clear()
    return sum(epoch_losses) / len(epoch_losses)


def main():
    args = get_args()
    torch.manual_seed(args.seed)
    train_set = TensorDataset(make_traces(args.traces, args.points))
    val_set = TensorDataset(make_traces(256, args.points))
    train_loader = DataLoader(train_set, batch_size=args.micro_batch, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=64)

    net = Denoiser(args.points, args.code)
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, nesterov=True)

    history = []
    os.makedirs(args.save_dir, exist_ok=True)
    for epoch in range(args.epochs):
        train_mse = train_epoch(net, train_loader, opt, args)
        val_mse = evaluate(net, val_loader, args.noise)
        history.append({"epoch": epoch, "train": train_mse, "val": val_mse})
        print(f"epoch {epoch:3d}   train mse {train_mse:10.4f}   val mse {val_mse:10.4f}")
    torch.save(net.state_dict(), os.path.join(args.save_dir, "denoiser.pth"))
    with open(os.path.join(args.save_dir, "history.json"), "w") as f:
        json.dump(history, f)


if __name__ == "__main__":
    main()
