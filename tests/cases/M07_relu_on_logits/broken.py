"""Tell which of several machines a vibration recording comes from."""

import itertools
import pathlib
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

CFG = {
    "seed": 5,
    "machines": 10,
    "recordings": 2400,
    "length": 96,
    "channels": (12, 24),
    "head": (48, 24),
    "batch": 48,
    "steps": 600,
    "lr": 0.02,
    "momentum": 0.9,
    "warmup": 30,
    "eval_every": 150,
    "save_to": "runs/vibration",
}


def synthesise(cfg, rng):
    """Every machine has two tones of its own and a habit of knocking."""
    n, length = cfg["recordings"], cfg["length"]
    machine = rng.integers(0, cfg["machines"], n)
    t = np.arange(length)[None, :]
    low = 0.12 + 0.05 * (machine % 5)[:, None]
    high = 0.9 + 0.25 * (machine // 5)[:, None]
    phase = rng.uniform(0, 2 * np.pi, (2, n, 1))
    wave = np.sin(low * t + phase[0]) + 0.6 * np.sin(high * t + phase[1])
    wave += 0.35 * rng.standard_normal((n, length))
    return wave.astype(np.float32)[:, None, :], machine.astype(np.int64)


def mlp(sizes):
    layers = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layers.append(nn.Linear(fan_in, fan_out))
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


class ConvStage(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv1d(in_channels, out_channels, 7, padding=3, bias=False)
        self.norm = nn.BatchNorm1d(out_channels)
        self.pool = nn.MaxPool1d(2)

    def forward(self, x):
        return self.pool(F.relu(self.norm(self.conv(x))))


class VibrationNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        stages, width = [], 1
        for channels in cfg["channels"]:
            stages.append(ConvStage(width, channels))
            width = channels
        self.stages = nn.Sequential(*stages)
        self.head = mlp([2 * width, *cfg["head"], cfg["machines"]])

    def forward(self, x):
        maps = self.stages(x)
        summary = torch.cat([maps.mean(-1), maps.amax(-1)], dim=1)
        return self.head(summary)


class BatchSampler:
    """Endless mini-batches, a fresh permutation each epoch."""

    def __init__(self, x, y, size, generator):
        self.x, self.y, self.size, self.generator = x, y, size, generator
        self.order = torch.empty(0, dtype=torch.long)

    def next(self):
        if len(self.order) < self.size:
            self.order = torch.randperm(len(self.x), generator=self.generator)
        rows, self.order = self.order[: self.size], self.order[self.size :]
        return self.x[rows], self.y[rows]


def evaluate(net, x, y):
    net.eval()
    with torch.inference_mode():
        logits = net(x)
        loss = F.cross_entropy(logits, y).item()
        accuracy = (logits.argmax(1) == y).float().mean().item()
    net.train()
    return loss, accuracy


def main(cfg):
    torch.manual_seed(cfg["seed"])
    x, y = map(torch.from_numpy, synthesise(cfg, np.random.default_rng(cfg["seed"])))
    held_out = 400
    sampler = BatchSampler(x[held_out:], y[held_out:], cfg["batch"], torch.Generator().manual_seed(cfg["seed"]))

    net = VibrationNet(cfg)
    sgd = torch.optim.SGD(net.parameters(), lr=cfg["lr"], momentum=cfg["momentum"], nesterov=True)
    warmup = torch.optim.lr_scheduler.LambdaLR(sgd, lambda step: min(1.0, (step + 1) / cfg["warmup"]))

    started = time.time()
    window = []
    for step in range(1, cfg["steps"] + 1):
        recordings, machines = sampler.next()
        loss = F.cross_entropy(net(recordings), machines)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        warmup.step()
        window.append(loss.item())
        if step % 50 == 0:
            print(f"step {step:4d}  loss {np.mean(window):.3f}  {time.time() - started:.1f} s")
            window.clear()
        if step % cfg["eval_every"] == 0:
            test_loss, accuracy = evaluate(net, x[:held_out], y[:held_out])
            print(f"           test loss {test_loss:.3f}  accuracy {accuracy:.1%}")

    folder = pathlib.Path(cfg["save_to"])
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(net.state_dict(), folder / "net.pt")


if __name__ == "__main__":
    main(CFG)
