"""Rating prediction: embeddings of users and items under an interaction MLP."""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import nn


class Interactions:
    """Made-up ratings from latent tastes, split by position."""

    def __init__(self, n_users, n_items, n_ratings, rng):
        tastes = rng.normal(size=(n_users, 4))
        traits = rng.normal(size=(n_items, 4))
        self.users = rng.integers(0, n_users, n_ratings)
        self.items = rng.integers(0, n_items, n_ratings)
        score = (tastes[self.users] * traits[self.items]).sum(1) / 2
        self.ratings = (np.tanh(score) + 0.05 * rng.normal(size=n_ratings)).astype(np.float32)
        self.cut = int(0.9 * n_ratings)

    def tensors(self, rows):
        return (
            torch.from_numpy(self.users[rows]),
            torch.from_numpy(self.items[rows]),
            torch.from_numpy(self.ratings[rows]),
        )


class NeuralRecommender(nn.Module):
    def __init__(self, n_users, n_items, dim, hidden):
        super().__init__()
        self.embeddings = nn.ModuleDict({"user": nn.Embedding(n_users, dim), "item": nn.Embedding(n_items, dim)})
        self.mlp = nn.Sequential(
            nn.Linear(3 * dim, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden // 2),
            nn.ReLU(),
            nn.Linear(hidden // 2, 1),
        )
        for table in self.embeddings.values():
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, users, items):
        u, v = self.embeddings["user"](users), self.embeddings["item"](items)
        return self.mlp(torch.cat([u, v, u * v], dim=-1)).squeeze(-1)


def build_optimizers(model, args):
    # Embedding rows are touched rarely, so plain SGD with a large rate suits them; the dense part gets AdamW.
    sparse = torch.optim.SGD(model.parameters(), lr=args.emb_lr)
    dense = torch.optim.AdamW(model.mlp.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    return sparse, dense


def rmse(model, data):
    model.eval()
    with torch.no_grad():
        users, items, ratings = data
        return (model(users, items) - ratings).pow(2).mean().sqrt().item()


def train(model, data, optimizers, args, rng):
    history = []
    criterion = nn.MSELoss()
    held_out = data.tensors(np.arange(data.cut, len(data.ratings)))
    step = 0
    for epoch in range(args.epochs):
        model.train()
        order = rng.permutation(data.cut)
        for start in range(0, data.cut - args.batch_size + 1, args.batch_size):
            users, items, ratings = data.tensors(order[start : start + args.batch_size])
            for opt in optimizers:
                opt.zero_grad()
            loss = criterion(model(users, items), ratings)
            loss.backward()
            for opt in optimizers:
                opt.step()
            step += 1
            if step % args.log_every == 0:
                print(f"step {step:5d}  mse {loss.item():.4f}")
        history.append(rmse(model, held_out))
        print(f"epoch {epoch + 1}  held-out rmse {history[-1]:.4f}")
    return history


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--users", type=int, default=80)
    parser.add_argument("--items", type=int, default=60)
    parser.add_argument("--ratings", type=int, default=16000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--emb-lr", type=float, default=10.0)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run-dir", type=Path, default=Path("runs/recommender"))
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    data = Interactions(args.users, args.items, args.ratings, rng)
    model = NeuralRecommender(args.users, args.items, args.dim, args.hidden)
    history = train(model, data, build_optimizers(model, args), args, rng)
    args.run_dir.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), args.run_dir / "model.pt")
    (args.run_dir / "history.json").write_text(json.dumps(history))


if __name__ == "__main__":
    main()
