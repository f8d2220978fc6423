"""Contrastive learning (InfoNCE): two noisy views of the same thing shall have similar embeddings."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class TwoViews(Dataset):
    """Hidden causes, seen through a fixed nonlinear mixing, twice and each time with other nuisances."""

    def __init__(self, size: int, causes: int = 6, features: int = 32, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        hidden = torch.randn(size, causes, generator=generator)
        mixing = torch.randn(causes, features, generator=generator) / causes**0.5
        clutter = torch.randn(8, features, generator=generator)
        clean = torch.tanh(hidden @ mixing) + 0.3 * (hidden @ mixing)
        views = [clean + torch.randn(size, 8, generator=generator) @ clutter * 0.4 for _ in range(2)]
        mean, std = torch.cat(views).mean(0), torch.cat(views).std(0)
        self.first, self.second = ((view - mean) / std for view in views)

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.first[index], self.second[index]


class Encoder(nn.Module):
    def __init__(self, features: int = 32, hidden: int = 96, embedding: int = 16) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(features, hidden), nn.BatchNorm1d(hidden), nn.ReLU())
        self.projector = nn.Linear(hidden, embedding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.projector(self.backbone(x)), dim=1)


class InfoNCE(nn.Module):
    """Each view must find its partner among all views of the other side, in both directions."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        similarity = first @ second.T / self.temperature
        partner = torch.arange(len(first))
        return 0.5 * (F.cross_entropy(similarity, partner) + F.cross_entropy(similarity.T, partner))


@torch.no_grad()
def found_partners(model: nn.Module, first: torch.Tensor, second: torch.Tensor) -> float:
    model.eval()
    similarity = model(first) @ model(second).T
    return (similarity.argmax(1) == torch.arange(len(first))).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.2)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    data = TwoViews(1280)
    train_set = torch.utils.data.Subset(data, range(1152))
    held_out = data.first[1152:], data.second[1152:]
    loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True)

    model, criterion = Encoder(), InfoNCE(args.temperature)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    history = []
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for first, second in loader:
            loss = criterion(model(first), model(second))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        history.append(total / len(loader))
        print(f"epoch {epoch + 1}: loss {history[-1]:.3f}, partners found {found_partners(model, *held_out):.1%}")
    print(f"loss {history[0]:.3f} -> {history[-1]:.3f}")


if __name__ == "__main__":
    main()
