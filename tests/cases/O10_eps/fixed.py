"""Two-tower retrieval: queries and items meet in one space, trained with in-batch negatives."""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class TowerConfig:
    n_users: int = 400
    n_items: int = 300
    n_genres: int = 16
    item_features: int = 24
    dim: int = 32
    temperature: float = 0.2
    dtype: str = "float32"


@dataclass
class TrainConfig:
    batch_size: int = 64
    steps: int = 600
    lr: float = 1e-2
    betas: tuple = (0.9, 0.99)
    log_every: int = 50
    seed: int = 11
    out_dir: str = "runs/two_tower"


class Interactions:
    """Every user likes items of a few genres; an event is a user and an item that fits."""

    def __init__(self, cfg, seed):
        rng = np.random.default_rng(seed)
        self.rng = rng
        self.taste = rng.integers(0, cfg.n_genres, (cfg.n_users, 2))
        self.genre = np.arange(cfg.n_items) % cfg.n_genres
        self.by_genre = [np.flatnonzero(self.genre == g) for g in range(cfg.n_genres)]
        anchors = rng.normal(size=(cfg.n_genres, cfg.item_features))
        self.features = (anchors[self.genre] + 0.3 * rng.normal(size=(cfg.n_items, cfg.item_features))).astype("f4")

    def sample(self, size):
        users = self.rng.integers(0, len(self.taste), size)
        genres = self.taste[users, self.rng.integers(0, 2, size)]
        items = np.array([self.rng.choice(self.by_genre[g]) for g in genres])
        return torch.from_numpy(users), torch.from_numpy(items)


class TwoTower(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.user = nn.Embedding(cfg.n_users, cfg.dim)
        self.item = nn.Sequential(nn.Linear(cfg.item_features, 64), nn.ReLU(), nn.Linear(64, cfg.dim))
        self.temperature = cfg.temperature
        self.compute_dtype = getattr(torch, cfg.dtype)
        self.to(self.compute_dtype)

    def forward(self, users, item_features):
        u = F.normalize(self.user(users).float(), dim=-1)
        v = F.normalize(self.item(item_features.to(self.compute_dtype)).float(), dim=-1)
        return u @ v.T / self.temperature


def contrastive_loss(scores, items):
    """Cross-entropy over the batch; other events with the same item are no negatives."""
    same = items[:, None] == items[None, :]
    same.fill_diagonal_(False)
    targets = torch.arange(len(items))
    return F.cross_entropy(scores.masked_fill(same, -1e4), targets)


@torch.no_grad()
def genre_precision(model, data, features, k=10):
    model.eval()
    scores = model(torch.arange(len(data.taste)), features)
    top = scores.topk(k, dim=1).indices.numpy()
    hits = (data.genre[top][:, :, None] == data.taste[:, None, :]).any(-1)
    model.train()
    return float(hits.mean())


def fit(model_cfg, cfg):
    torch.manual_seed(cfg.seed)
    data = Interactions(model_cfg, cfg.seed)
    features = torch.from_numpy(data.features)
    model = TwoTower(model_cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr, betas=cfg.betas)
    recent = []
    model.train()
    for step in range(1, cfg.steps + 1):
        users, items = data.sample(cfg.batch_size)
        loss = contrastive_loss(model(users, features[items]), items)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent.append(loss.item())
        if step % cfg.log_every == 0:
            precision = genre_precision(model, data, features)
            print(f"step {step:5d} loss {np.mean(recent):.4f} precision@10 {precision:.3f}")
            recent = []
    out = Path(cfg.out_dir)
    out.mkdir(parents=True, exist_ok=True)
    torch.save({"state": model.state_dict(), "config": asdict(model_cfg)}, out / "model.pt")


if __name__ == "__main__":
    fit(TowerConfig(), TrainConfig())
