import os
from itertools import pairwise

import numpy as np
import torch
import torch.nn as nn

CFG = {
    "seed": 1234,
    "n_train": 2048,
    "n_val": 512,
    "n_events": 8,
    "length": 128,
    "channels": [16, 32, 48],
    "batch": 64,
    "epochs": 14,
    "lr": 3e-3,
    "weight_decay": 1e-2,
    "run_dir": "./runs/sound_events",
}


def synth(n, cfg, rng):
    """Each clip is noise plus a windowed tone for every event that happens in it; several may."""
    t = np.arange(cfg["length"]) / cfg["length"]
    freqs = np.linspace(4, 46, cfg["n_events"])
    y = (rng.random((n, cfg["n_events"])) < 0.4).astype(np.float32)
    x = rng.normal(0, 0.3, (n, cfg["length"])).astype(np.float32)
    for i in range(n):
        for k in np.flatnonzero(y[i]):
            centre, width = rng.uniform(0.3, 0.7), rng.uniform(0.15, 0.3)
            window = np.exp(-(((t - centre) / width) ** 2))
            x[i] += window * np.sin(2 * np.pi * (freqs[k] * t + rng.random()))
    return x[:, None], y


class ConvBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv1d(cin, cout, 9, stride=2, padding=4, bias=False)
        self.bn = nn.BatchNorm1d(cout)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)))


class EventNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        widths = [1, *cfg["channels"]]
        self.blocks = nn.Sequential(*[ConvBlock(a, b) for a, b in pairwise(widths)])
        self.head = nn.Linear(widths[-1], cfg["n_events"])

    def forward(self, x):
        feats = self.blocks(x).amax(dim=-1)
        return self.head(feats)


def iterate(x, y, batch, shuffle):
    order = np.random.permutation(len(x)) if shuffle else np.arange(len(x))
    for start in range(0, len(x), batch):
        idx = order[start : start + batch]
        yield torch.from_numpy(x[idx]), torch.from_numpy(y[idx])


def train_one_epoch(model, criterion, optimizer, x, y, cfg):
    model.train()
    running = 0.0
    n_batches = 0
    for xb, yb in iterate(x, y, cfg["batch"], shuffle=True):
        pred = model(xb)
        loss = criterion(pred, yb)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        running += loss.item()
        n_batches += 1
    return running / n_batches


def validate(model, x, y, cfg):
    model.eval()
    tp = fp = fn = 0
    with torch.no_grad():
        for xb, yb in iterate(x, y, cfg["batch"], shuffle=False):
            hits = torch.sigmoid(model(xb)) > 0.5
            truth = yb.bool()
            tp += (hits & truth).sum().item()
            fp += (hits & ~truth).sum().item()
            fn += (~hits & truth).sum().item()
    return 2 * tp / max(1, 2 * tp + fp + fn)


def run(cfg):
    np.random.seed(cfg["seed"])
    torch.manual_seed(cfg["seed"])
    rng = np.random.default_rng(cfg["seed"])
    x_train, y_train = synth(cfg["n_train"], cfg, rng)
    x_val, y_val = synth(cfg["n_val"], cfg, rng)

    model = EventNet(cfg)
    criterion = nn.BCEWithLogitsLoss()
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": cfg["weight_decay"]}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=cfg["lr"])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=cfg["epochs"])

    os.makedirs(cfg["run_dir"], exist_ok=True)
    best_f1 = 0.0
    for epoch in range(cfg["epochs"]):
        train_loss = train_one_epoch(model, criterion, optimizer, x_train, y_train, cfg)
        scheduler.step()
        f1 = validate(model, x_val, y_val, cfg)
        print(f"[{epoch + 1:02d}/{cfg['epochs']}] train_loss={train_loss:.4f} val_f1={f1:.3f}")
        if f1 > best_f1:
            best_f1 = f1
            torch.save({"model": model.state_dict(), "cfg": cfg, "f1": f1}, os.path.join(cfg["run_dir"], "best.pt"))
    print("best f1:", round(best_f1, 3))


if __name__ == "__main__":
    run(CFG)
