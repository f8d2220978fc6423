import argparse
import csv
import pathlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

COLUMNS = ["area_m2", "rooms", "year", "dist_km", "noise_db", "floor", "rate", "income", "pop", "lat"]
SCALES = np.array([40.0, 1.2, 25.0, 6.0, 8.0, 4.0, 0.02, 900.0, 5000.0, 0.05])
CENTRES = np.array([90.0, 3.0, 1978.0, 9.0, 55.0, 4.0, 0.05, 3100.0, 20000.0, 52.4])


def fake_listings(n, seed):
    """Listings as they come out of the table, in their own units, and a price band from 0 to 4."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, len(COLUMNS)))
    score = 1.2 * z[:, 0] + z[:, 1] * z[:, 2] - 0.9 * np.abs(z[:, 3]) + np.sin(2 * z[:, 4]) + 0.7 * z[:, 7]
    band = np.digitize(score, [-1.8, -0.8, 0.2, 1.3])
    x = CENTRES + SCALES * z
    return torch.tensor(x, dtype=torch.float32), torch.tensor(band)


class BandNet(nn.Module):
    def __init__(self, n_features, n_bands=5, width=96, depth=3, p=0.05):
        super().__init__()
        self.norm_in = nn.BatchNorm1d(n_features)
        layers, d = [], n_features
        for _ in range(depth):
            layers += [nn.Linear(d, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(p)]
            d = width
        self.mlp = nn.Sequential(*layers)
        self.head = nn.Linear(d, n_bands)

    def forward(self, x):
        return self.head(self.mlp(self.norm_in(x)))


class Evaluator:
    def __init__(self, model, loader, loss_fn):
        self.model, self.loader, self.loss_fn = model, loader, loss_fn

    @torch.no_grad()
    def __call__(self):
        self.model.eval()
        loss = hits = seen = 0
        for x, y in self.loader:
            out = self.model(x)
            loss += self.loss_fn(out, y).item() * len(y)
            hits += (out.argmax(1) == y).sum().item()
            seen += len(y)
        self.model.train()
        return loss / seen, hits / seen


def infinite(loader):
    while True:
        yield from loader


def build(opts):
    train_ds = TensorDataset(*fake_listings(opts.n_train, seed=opts.seed))
    valid_ds = TensorDataset(*fake_listings(1000, seed=opts.seed + 1))
    train = DataLoader(train_ds, batch_size=opts.batch, shuffle=True, drop_last=True)
    valid = DataLoader(valid_ds, batch_size=500)
    model = BandNet(len(COLUMNS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=opts.lr, weight_decay=1e-4)
    return model, optimizer, train, valid


def main(argv=None):
    cli = argparse.ArgumentParser()
    cli.add_argument("--max-steps", type=int, default=1200)
    cli.add_argument("--valid-every", type=int, default=200)
    cli.add_argument("--n-train", type=int, default=6000)
    cli.add_argument("--batch", type=int, default=64)
    cli.add_argument("--lr", type=float, default=2e-3)
    cli.add_argument("--seed", type=int, default=11)
    cli.add_argument("--run", type=pathlib.Path, default=pathlib.Path("runs/bands"))
    opts = cli.parse_args(argv)

    torch.manual_seed(opts.seed)
    model, optimizer, train, valid = build(opts)
    loss_fn = nn.CrossEntropyLoss()
    evaluator = Evaluator(model, valid, loss_fn)
    opts.run.mkdir(parents=True, exist_ok=True)

    model.train()
    val_loss, val_acc = evaluator()
    print(f"before training: valid loss {val_loss:.3f}, accuracy {val_acc:.3f}")
    rows, running = [], None
    for step, (x, y) in enumerate(infinite(train), start=1):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        value = loss.item()
        running = value if running is None else 0.98 * running + 0.02 * value
        if step % opts.valid_every == 0:
            val_loss, val_acc = evaluator()
            rows.append((step, running, val_loss, val_acc))
            print(f"step {step:5d}  loss {running:.3f}  valid loss {val_loss:.3f}  accuracy {val_acc:.3f}")
            torch.save(model.state_dict(), opts.run / "last.pt")
        if step >= opts.max_steps:
            break

    with open(opts.run / "history.csv", "w", newline="") as f:
        csv.writer(f).writerows([("step", "loss", "valid_loss", "valid_acc"), *rows])


if __name__ == "__main__":
    main()
