"""Predict which loans will be repaid late."""

import argparse
import dataclasses
import itertools
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class Table:
    columns: list
    values: np.ndarray
    late: np.ndarray

    def split(self, fraction, rng):
        order = rng.permutation(len(self.late))
        cut = int(fraction * len(order))
        return self._rows(order[:cut]), self._rows(order[cut:])

    def _rows(self, rows):
        return Table(self.columns, self.values[rows], self.late[rows])


def load_loans(count, rng):
    income = rng.lognormal(10.6, 0.5, count)
    amount = rng.lognormal(9.2, 0.7, count)
    age = rng.uniform(20, 70, count)
    months_employed = rng.exponential(60, count)
    utilisation = rng.beta(2, 4, count)
    rate = rng.normal(0.07, 0.02, count).clip(0.01)
    open_accounts = rng.poisson(5, count)
    missed_before = rng.poisson(0.6, count)
    risk = (
        0.9 * (np.log(amount) - np.log(income) + 1.4)
        + 5.0 * (utilisation - 0.33)
        + 1.2 * (missed_before - 0.6)
        + 40.0 * (rate - 0.07)
        - 0.012 * (months_employed - 60)
        + 0.8 * np.cos(age / 8)
    )
    late = (2.0 * risk + rng.logistic(0, 0.6, count) > 0).astype(np.float32)
    columns = ["income", "amount", "age", "months", "utilisation", "rate", "accounts", "missed"]
    values = np.stack([income, amount, age, months_employed, utilisation, rate, open_accounts, missed_before], 1)
    return Table(columns, values.astype(np.float32), late)


def to_tensors(table, shift, scale):
    x = torch.from_numpy((table.values - shift) / scale)
    y = torch.from_numpy(table.late)
    return x, y


class LoanScorer(nn.Module):
    def __init__(self, n_columns, widths):
        super().__init__()
        dims = [n_columns, *widths]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(dims))
        self.score = nn.Linear(dims[-1], 1)

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.score(x).squeeze(-1)


def auc(scores, late):
    order = scores.argsort()
    ranks = torch.empty_like(scores)
    ranks[order] = torch.arange(1, len(scores) + 1, dtype=scores.dtype)
    positives = late.sum()
    negatives = len(late) - positives
    return ((ranks[late > 0].sum() - positives * (positives + 1) / 2) / (positives * negatives)).item()


def minibatches(x, y, size, rng):
    order = rng.permutation(len(x))
    for start in range(0, len(order) - size + 1, size):
        rows = torch.from_numpy(order[start : start + size])
        yield x[rows], y[rows]


def fit(args):
    rng = np.random.default_rng(args.seed)
    torch.manual_seed(args.seed)
    train, test = load_loans(args.rows, rng).split(0.8, rng)
    shift, scale = train.values.mean(axis=0), train.values.std(axis=0)
    x_train, y_train = to_tensors(train, shift, scale)
    x_test, y_test = to_tensors(test, shift, scale)

    model = LoanScorer(x_train.shape[1], args.widths)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=4)

    for epoch in range(args.epochs):
        losses = []
        for xb, yb in minibatches(x_train, y_train, args.batch, rng):
            loss = F.binary_cross_entropy_with_logits(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            scores = model(x_test)
            test_loss = F.binary_cross_entropy_with_logits(scores, y_test).item()
        plateau.step(test_loss)
        if epoch % 2 == 0 or epoch == args.epochs - 1:
            message = f"epoch {epoch:3d}  train {np.mean(losses):.4f}  test {test_loss:.4f}"
            print(f"{message}  auc {auc(scores, y_test):.3f}")

    folder = pathlib.Path(args.save)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"model": model.state_dict(), "columns": train.columns}, folder / "scorer.pt")


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--rows", type=int, default=5000)
    cli.add_argument("--widths", type=int, nargs="+", default=[64, 32])
    cli.add_argument("--batch", type=int, default=50)
    cli.add_argument("--epochs", type=int, default=20)
    cli.add_argument("--lr", type=float, default=2e-3)
    cli.add_argument("--seed", type=int, default=8)
    cli.add_argument("--save", default="runs/loans")
    fit(cli.parse_args())
