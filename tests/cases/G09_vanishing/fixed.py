"""Compress ECG-like beats with a deep autoencoder."""

import json
import pathlib
import sys
from itertools import pairwise

import numpy as np
import torch
from torch import nn

DEFAULTS = {
    "beat_length": 48,
    "beats": 3000,
    "encoder": [96, 64, 48, 12],
    "activation": "relu",
    "optimizer": {"name": "sgd", "lr": 0.2, "momentum": 0.9},
    "batch": 60,
    "rounds": 12,
    "seed": 1,
    "run_dir": "runs/beats",
}

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


def generate_beats(n, length, seed):
    rng = np.random.RandomState(seed)
    t = np.linspace(0, 1, length)[None, :]

    def wave(centre, width, height):
        centre = centre + 0.02 * rng.randn(n, 1)
        height = height * (1 + 0.4 * rng.randn(n, 1))
        return height * np.exp(-(((t - centre) / width) ** 2))

    beats = wave(0.22, 0.05, 0.6) + wave(0.45, 0.03, 2.2) - wave(0.52, 0.03, 0.9) + wave(0.75, 0.08, 0.8)
    beats += 0.8 * rng.randn(n, 1) * (t - 0.5) + 0.03 * rng.randn(n, length)
    beats = (beats - beats.mean(axis=0)) / beats.std(axis=0)
    return torch.tensor(beats, dtype=torch.float32)


class DeepAutoencoder(nn.Module):
    def __init__(self, length, widths, activation):
        super().__init__()
        act = ACTIVATIONS[activation]
        self.encoder = self._stack([length, *widths], act)
        self.decoder = self._stack([*reversed(widths), length], act, linear_end=True)

    @staticmethod
    def _stack(sizes, act, linear_end=False):
        modules = []
        last = len(sizes) - 2
        for i, (n_in, n_out) in enumerate(pairwise(sizes)):
            modules.append(nn.Linear(n_in, n_out))
            if not (linear_end and i == last):
                modules.append(act())
        return nn.Sequential(*modules)

    def forward(self, beats):
        return self.decoder(self.encoder(beats))


def build_optimizer(model, spec):
    spec = dict(spec)
    name = spec.pop("name")
    return {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name](model.parameters(), **spec)


def explained_variance(model, beats):
    model.eval()
    with torch.no_grad():
        residual = beats - model(beats)
    model.train()
    return 1 - (residual.var() / beats.var()).item()


def fit(cfg):
    torch.manual_seed(cfg["seed"])
    beats = generate_beats(cfg["beats"], cfg["beat_length"], cfg["seed"])
    test, train = beats[:300], beats[300:]
    model = DeepAutoencoder(cfg["beat_length"], cfg["encoder"], cfg["activation"])
    optimizer = build_optimizer(model, cfg["optimizer"])
    criterion = nn.MSELoss()

    history = []
    for r in range(cfg["rounds"]):
        order = torch.randperm(len(train))
        losses = []
        for rows in order.split(cfg["batch"]):
            batch = train[rows]
            loss = criterion(model(batch), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        history.append({"loss": float(np.mean(losses)), "explained": explained_variance(model, test)})
        print("round {:2d}: loss {loss:.4f}, variance explained {explained:.3f}".format(r + 1, **history[-1]))
    return model, history


def main():
    cfg = dict(DEFAULTS)
    for override in sys.argv[1:]:
        key, _, value = override.partition("=")
        cfg[key] = json.loads(value)
    model, history = fit(cfg)
    run_dir = pathlib.Path(cfg["run_dir"])
    run_dir.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), run_dir / "autoencoder.pt")
    (run_dir / "history.json").write_text(json.dumps({"config": cfg, "history": history}))


if __name__ == "__main__":
    main()
