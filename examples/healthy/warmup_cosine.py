"""Warm-up and a cosine, stepped with every batch: does a sequence hold its first token a second time?"""

import argparse
import math

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

LENGTH = 8
VOCABULARY = 10


def sequences(size: int, seed: int) -> TensorDataset:
    """About half of the sequences hold their first token a second time."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCABULARY, (size, LENGTH), generator=generator)
    return TensorDataset(ids, (ids[:, 1:] == ids[:, :1]).any(dim=1).long())


class Classifier(nn.Module):
    def __init__(self, dim: int = 32, heads: int = 4, layers: int = 2, dropout: float = 0.05) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, dim)
        self.position = nn.Parameter(0.1 * torch.randn(LENGTH, dim))
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, 2)
        # Small logits at first: the loss then begins at that of a fair guess.
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(ids) + self.position)[:, 0])


def warmup_cosine(optimizer: torch.optim.Optimizer, warmup: int, total: int) -> LambdaLR:
    """Both lengths are in optimizer steps: step the scheduler after each of them."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))

    return LambdaLR(optimizer, factor)


def split_decay(model: nn.Module, weight_decay: float) -> list[dict]:
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    spared = [p for name, p in named if p.ndim < 2 or name == "position"]
    decayed = [p for name, p in named if p.ndim >= 2 and name != "position"]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": spared, "weight_decay": 0.0}]


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = sum((model(ids).argmax(1) == labels).sum().item() for ids, labels in loader)
    return right / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--clip", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train_loader = DataLoader(sequences(2400, seed=1), batch_size=args.batch_size, shuffle=True)
    valid_loader = DataLoader(sequences(256, seed=2), batch_size=128)
    model = Classifier()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(split_decay(model, args.weight_decay), lr=args.lr)
    scheduler = warmup_cosine(optimizer, args.warmup, total=args.epochs * len(train_loader))
    losses = []
    for epoch in range(args.epochs):
        model.train()
        for ids, labels in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(ids), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: loss {losses[-1]:.3f}, validation accuracy {accuracy(model, valid_loader):.1%}")
    print(f"loss {sum(losses[:10]) / 10:.3f} -> {sum(losses[-20:]) / 20:.3f}")


if __name__ == "__main__":
    main()
