"""Pre-train a small transformer to fill gaps in sensor readings."""

import math
import os
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class PretrainConfig:
    sensors: int = 4
    window: int = 20
    dim: int = 32
    heads: int = 2
    mask_rate: float = 0.3
    batch: int = 32
    steps: int = 500
    lr: float = 4e-3
    warmup: int = 20
    grad_clip: float = 1.0
    log_every: int = 25
    seed: int = 12
    save_dir: str = "checkpoints/gaps"


class ReadingSource:
    """Windows of several sensors that share two slow oscillations."""

    def __init__(self, cfg):
        self.cfg = cfg
        self.gen = torch.Generator().manual_seed(cfg.seed)
        self.mix = torch.randn(2, cfg.sensors, generator=self.gen)

    def draw(self, count):
        t = torch.arange(self.cfg.window).view(1, -1, 1)
        speed = torch.rand(count, 1, 2, generator=self.gen) * 0.3 + 0.15
        phase = torch.rand(count, 1, 2, generator=self.gen) * 2 * math.pi
        latent = torch.sin(speed * t + phase)
        noise = 0.05 * torch.randn(count, self.cfg.window, self.cfg.sensors, generator=self.gen)
        return latent @ self.mix + noise

    def mask(self, count):
        return torch.rand(count, self.cfg.window, generator=self.gen) < self.cfg.mask_rate


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        h = self.ln1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.ff(self.ln2(x))


class GapFiller(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Linear(cfg.sensors, cfg.dim)
        self.gap_token = nn.Parameter(torch.zeros(cfg.dim))
        self.position = nn.Parameter(0.5 * torch.randn(cfg.window, cfg.dim))
        self.blocks = nn.Sequential(Block(cfg.dim, cfg.heads), Block(cfg.dim, cfg.heads))
        self.norm = nn.LayerNorm(cfg.dim)
        self.readout = nn.Linear(cfg.dim, cfg.sensors)

    def forward(self, readings, gaps):
        tokens = torch.where(gaps.unsqueeze(-1), self.gap_token, self.embed(readings))
        return self.readout(self.norm(self.blocks(tokens + self.position)))


def gap_loss(filled, readings, gaps):
    """Mean squared error over the hidden readings of each window."""
    error = (filled - readings).pow(2).mean(dim=-1) * gaps
    return (error.sum(dim=1) / gaps.sum(dim=1).clamp(min=1)).mean()


def lr_at(step, cfg):
    if step < cfg.warmup:
        return (step + 1) / cfg.warmup
    progress = (step - cfg.warmup) / (cfg.steps - cfg.warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))


@torch.no_grad()
def validate(model, readings, gaps):
    model.eval()
    wrong = (model(readings, gaps) - readings)[gaps]
    model.train()
    return wrong.abs().mean().item()


def pretrain(cfg):
    torch.manual_seed(cfg.seed)
    source = ReadingSource(cfg)
    held_out = source.draw(128), source.mask(128)
    model = GapFiller(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.98), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_at(step, cfg))

    for step in range(cfg.steps):
        readings, gaps = source.draw(cfg.batch), source.mask(cfg.batch)
        loss = gap_loss(model(readings, gaps), readings, gaps)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip)
        optimizer.step()
        scheduler.step()
        if step % cfg.log_every == 0:
            print(f"step {step:4d} loss {loss.item():.4f} held-out error {validate(model, *held_out):.4f}")
    return model


if __name__ == "__main__":
    config = PretrainConfig()
    trained = pretrain(config)
    os.makedirs(config.save_dir, exist_ok=True)
    torch.save(trained.state_dict(), os.path.join(config.save_dir, "gap_filler.pt"))
