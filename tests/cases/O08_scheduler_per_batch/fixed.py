"""Train a projection network so that two noisy views of one signal land close together."""

import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim import AdamW
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, Dataset


class TwoViews(Dataset):
    """Each item is a latent point, seen through two different non-linear sensors."""

    def __init__(self, n_items, latent=10, dim=48, seed=0):
        gen = torch.Generator().manual_seed(seed)
        sensors = torch.Generator().manual_seed(1000)
        self.z = torch.randn(n_items, latent, generator=gen)
        self.map_a = torch.randn(latent, dim, generator=sensors)
        self.map_b = torch.randn(latent, dim, generator=sensors)

    def __len__(self):
        return len(self.z)

    def __getitem__(self, index):
        z = self.z[index]
        view_a = torch.tanh(0.7 * z @ self.map_a)
        view_b = torch.sin(0.7 * z @ self.map_b)
        return view_a + 0.1 * torch.randn_like(view_a), view_b + 0.1 * torch.randn_like(view_b)


class Tower(nn.Module):
    def __init__(self, dim_in, width, dim_out):
        super().__init__()
        self.inp = nn.Linear(dim_in, width)
        self.mid = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.proj = nn.Linear(width, dim_out, bias=False)

    def forward(self, x):
        x = F.gelu(self.inp(x))
        for norm, lin in zip(self.norms, self.mid, strict=True):
            x = x + F.gelu(lin(norm(x)))
        return F.normalize(self.proj(x), dim=-1)


class DualEncoder(nn.Module):
    def __init__(self, dim_in=48, width=96, dim_out=24):
        super().__init__()
        self.left = Tower(dim_in, width, dim_out)
        self.right = Tower(dim_in, width, dim_out)
        self.log_scale = nn.Parameter(torch.tensor(2.3))

    def forward(self, a, b):
        return self.log_scale.exp() * self.left(a) @ self.right(b).T


def clip_style_loss(sim):
    target = torch.arange(sim.size(0), device=sim.device)
    return 0.5 * (F.cross_entropy(sim, target) + F.cross_entropy(sim.T, target))


@torch.no_grad()
def recall_at_1(model, loader):
    was_training = model.training
    model.eval()
    hits = total = 0
    for a, b in loader:
        sim = model(a, b)
        hits += (sim.argmax(1) == torch.arange(len(a))).sum().item()
        total += len(a)
    model.train(was_training)
    return hits / total


def parameter_groups(model, weight_decay):
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": decay, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]


def fit(args):
    torch.manual_seed(args.seed)
    train_dl = DataLoader(TwoViews(args.items), batch_size=args.batch_size, shuffle=True, drop_last=True)
    test_dl = DataLoader(TwoViews(512, seed=1), batch_size=128)

    model = DualEncoder()
    optimizer = AdamW(parameter_groups(model, args.weight_decay), lr=args.lr)
    scheduler = ExponentialLR(optimizer, gamma=args.gamma)
    best_recall, best_state = -1.0, None

    for epoch in range(args.epochs):
        model.train()
        epoch_loss = 0.0
        for a, b in train_dl:
            loss = clip_style_loss(model(a, b))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item()
        scheduler.step()

        recall = recall_at_1(model, test_dl)
        lr = scheduler.get_last_lr()[0]
        print(f"Epoch [{epoch + 1}/{args.epochs}] loss={epoch_loss / len(train_dl):.4f} R@1={recall:.3f} lr={lr:.2e}")
        if recall > best_recall:
            best_recall, best_state = recall, copy.deepcopy(model.state_dict())
    return best_recall, best_state


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=2560)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--gamma", type=float, default=0.85)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=8)
    recall, _ = fit(parser.parse_args())
    print(f"best R@1 {recall:.3f}")
