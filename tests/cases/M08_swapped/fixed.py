"""Delivery-time model that also says how sure it is."""

import argparse
import json
import logging
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split

logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
log = logging.getLogger("eta")

DISTRICTS = 12


class Deliveries(Dataset):
    """One row per order: where it goes, how far, how busy the kitchen is, and the hours it took."""

    def __init__(self, count, seed):
        gen = torch.Generator().manual_seed(seed)
        self.district = torch.randint(0, DISTRICTS, (count,), generator=gen)
        distance = torch.rand(count, generator=gen) * 2 - 1
        backlog = torch.randn(count, generator=gen)
        rain = (torch.rand(count, generator=gen) < 0.3).float()
        delay = torch.linspace(-0.4, 0.6, DISTRICTS)[torch.randperm(DISTRICTS, generator=gen)]
        hours = 1.8 + 0.9 * distance + 0.25 * backlog + 0.35 * rain + delay[self.district]
        spread = 0.04 + 0.12 * rain
        self.hours = (hours + spread * torch.randn(count, generator=gen)).clamp(min=0.2)
        self.numeric = torch.stack([distance, backlog, rain], dim=1)

    def __len__(self):
        return len(self.hours)

    def __getitem__(self, i):
        return {"district": self.district[i], "numeric": self.numeric[i], "hours": self.hours[i]}


class EtaModel(nn.Module):
    def __init__(self, embed=6, width=64):
        super().__init__()
        self.district = nn.Embedding(DISTRICTS, embed)
        self.trunk = nn.Sequential(
            nn.Linear(embed + 3, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
        )
        self.mean = nn.Linear(width, 1)
        self.spread = nn.Linear(width, 1)

    def forward(self, district, numeric):
        h = self.trunk(torch.cat([self.district(district), numeric], dim=-1))
        mean = self.mean(h).squeeze(-1)
        var = nn.functional.softplus(self.spread(h)).squeeze(-1) + 1e-3
        return mean, var


class EtaTrainer:
    def __init__(self, model, args):
        self.model = model
        self.args = args
        self.loss_fn = nn.GaussianNLLLoss(eps=1e-4)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.98))
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=4, gamma=0.6)
        self.history = []

    def compute_loss(self, batch):
        mean, var = self.model(batch["district"], batch["numeric"])
        return self.loss_fn(mean, batch["hours"], var), mean

    def run_epoch(self, loader):
        self.model.train()
        losses = []
        for batch in loader:
            self.optimizer.zero_grad()
            loss, _ = self.compute_loss(batch)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip)
            self.optimizer.step()
            losses.append(loss.detach())
        self.scheduler.step()
        return torch.stack(losses).mean().item()

    @torch.no_grad()
    def mean_error(self, loader):
        self.model.eval()
        errors = []
        for batch in loader:
            _, mean = self.compute_loss(batch)
            errors.append((mean - batch["hours"]).abs())
        return torch.cat(errors).mean().item()

    def fit(self, train_loader, valid_loader):
        for epoch in range(self.args.epochs):
            loss = self.run_epoch(train_loader)
            error = self.mean_error(valid_loader)
            self.history.append({"epoch": epoch, "loss": loss, "mae_minutes": 60 * error})
            log.info("epoch %d  nll %.4f  mean error %.1f min", epoch, loss, 60 * error)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--orders", type=int, default=4000)
    ap.add_argument("--batch", type=int, default=50)
    ap.add_argument("--epochs", type=int, default=12)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--clip", type=float, default=10.0)
    ap.add_argument("--seed", type=int, default=11)
    ap.add_argument("--out", type=Path, default=Path("runs/eta"))
    args = ap.parse_args()

    torch.manual_seed(args.seed)
    train_set, valid_set = random_split(Deliveries(args.orders, args.seed), [0.9, 0.1])
    trainer = EtaTrainer(EtaModel(), args)
    trainer.fit(
        DataLoader(train_set, batch_size=args.batch, shuffle=True),
        DataLoader(valid_set, batch_size=200),
    )

    args.out.mkdir(parents=True, exist_ok=True)
    torch.save(trainer.model.state_dict(), args.out / "model.pt")
    (args.out / "history.json").write_text(json.dumps(trainer.history, indent=1))


if __name__ == "__main__":
    main()
