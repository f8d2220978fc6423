"""Denoising autoencoder for multichannel sensor windows."""

import json
import math
import os

import numpy as np
import torch
from torch import nn

hparams = {
    "channels": 6,
    "window": 32,
    "hidden": 96,
    "code": 12,
    "noise_std": 0.3,
    "n_windows": 6000,
    "batch": 64,
    "epochs": 10,
    "lr": 0.1,
    "momentum": 0.9,
    "seed": 42,
    "run_dir": "runs/dae",
}


def sensor_windows(n, channels, window, rng):
    t = np.arange(window)[None, None, :]
    base = rng.uniform(0.1, 0.5, (n, 1, 1))
    shift = rng.uniform(0, 2 * math.pi, (n, 1, 1))
    gains = np.linspace(0.5, 1.5, channels)[None, :, None]
    lag = np.linspace(0, 1.5, channels)[None, :, None]
    drift = rng.normal(0, 0.5, (n, 1, 1)) * (t / window - 0.5)
    return (gains * np.sin(base * t + shift + lag) + drift).astype(np.float32)


class Encoder(nn.Module):
    def __init__(self, n_in, n_hidden, n_code):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(n_in, n_hidden), nn.ELU(), nn.Linear(n_hidden, n_code))

    def forward(self, x):
        return self.net(x)


class Decoder(nn.Module):
    def __init__(self, n_code, n_hidden, shape):
        super().__init__()
        self.shape = shape
        self.net = nn.Sequential(nn.Linear(n_code, n_hidden), nn.ELU(), nn.Linear(n_hidden, n_hidden), nn.ELU())
        self.out = nn.Linear(n_hidden, math.prod(shape))

    def forward(self, z):
        return self.out(self.net(z)).view(-1, *self.shape)


class DenoisingAE(nn.Module):
    def __init__(self, hp):
        super().__init__()
        shape = (hp["channels"], hp["window"])
        self.enc = Encoder(math.prod(shape), hp["hidden"], hp["code"])
        self.dec = Decoder(hp["code"], hp["hidden"], shape)

    def forward(self, x):
        return self.dec(self.enc(x))


class Session:
    """Owns the model, the data and the optimizer of one run."""

    def __init__(self, hp):
        self.hp = hp
        self.rng = np.random.default_rng(hp["seed"])
        torch.manual_seed(hp["seed"])
        clean = sensor_windows(hp["n_windows"], hp["channels"], hp["window"], self.rng)
        self.mean, self.std = clean.mean(), clean.std()
        clean = (clean - self.mean) / self.std
        self.train_x, self.test_x = clean[:-500], clean[-500:]
        self.model = DenoisingAE(hp)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=hp["lr"], momentum=hp["momentum"])
        self.mse = nn.MSELoss()
        self.log = []

    def corrupt(self, x):
        return x + self.hp["noise_std"] * torch.randn_like(x)

    def batches(self):
        perm = self.rng.permutation(len(self.train_x))
        size = self.hp["batch"]
        for k in range(len(perm) // size):
            yield torch.from_numpy(self.train_x[perm[k * size : (k + 1) * size]])

    def update(self, x):
        recon = self.model(self.corrupt(x))
        loss = self.mse(recon, x)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def test_error(self):
        x = torch.from_numpy(self.test_x)
        self.model.eval()
        err = self.mse(self.model(self.corrupt(x)), x).item()
        self.model.train()
        return err

    def run(self):
        for epoch in range(self.hp["epochs"]):
            losses = [self.update(x) for x in self.batches()]
            row = {"epoch": epoch, "train": float(np.mean(losses)), "last": losses[-1], "test": self.test_error()}
            self.log.append(row)
            print("  ".join(f"{k}={v:.4g}" for k, v in row.items()))
        self.finish()

    def finish(self):
        os.makedirs(self.hp["run_dir"], exist_ok=True)
        torch.save(self.model.state_dict(), os.path.join(self.hp["run_dir"], "weights.pt"))
        with open(os.path.join(self.hp["run_dir"], "log.json"), "w") as f:
            json.dump(self.log, f, indent=1)


if __name__ == "__main__":
    Session(hparams).run()
