"""Low-rank adaptation: a pretrained encoder stays frozen; small adapters and a fresh head learn a new task."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY = 12
LENGTH = 11


class LoRALinear(nn.Module):
    """A frozen linear layer plus a trainable update of low rank, which begins at zero."""

    def __init__(self, base: nn.Linear, rank: int = 4, alpha: float = 8.0) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scaling = alpha / rank
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.scaling * F.linear(F.linear(x, self.lora_A), self.lora_B)


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query, self.key, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.project = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.project(F.scaled_dot_product_attention(self.query(y), self.key(y), self.value(y)))
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    def __init__(self, classes: int, dim: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, dim)
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, dim))
        self.blocks = nn.Sequential(Block(dim), Block(dim))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.positions)).mean(1))


def sequences(size: int, seed: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (size, LENGTH), generator=torch.Generator().manual_seed(seed))


def fit(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer, epochs: int) -> list[float]:
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    model.train()
    losses = []
    for _ in range(epochs):
        for ids, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(ids), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            losses.append(loss.item())
    return losses


def add_adapters(model: Encoder, classes: int) -> Encoder:
    """Freeze everything, wrap the query and value projections, put a fresh head on."""
    model.requires_grad_(False)
    for block in model.blocks:
        block.query = LoRALinear(block.query)
        block.value = LoRALinear(block.value)
    model.head = nn.Linear(model.head.in_features, classes)
    return model


def main() -> None:
    torch.manual_seed(0)
    # Pretraining: are there more low tokens than high ones?
    ids = sequences(1024, seed=1)
    more_low = ((ids < VOCABULARY // 2).sum(1) > LENGTH // 2).long()
    loader = DataLoader(TensorDataset(ids, more_low), batch_size=32, shuffle=True)
    model = Encoder(classes=2)
    fit(model, loader, torch.optim.Adam(model.parameters(), lr=2e-3), epochs=2)

    # Adaptation: are there more even tokens than odd ones?
    ids = sequences(1280, seed=2)
    labels = ((ids % 2 == 0).sum(1) > LENGTH // 2).long()
    loader = DataLoader(TensorDataset(ids, labels), batch_size=32, shuffle=True)
    model = add_adapters(model, classes=2)
    trainable = [p for p in model.parameters() if p.requires_grad]
    share = sum(p.numel() for p in trainable) / sum(p.numel() for p in model.parameters())
    print(f"{share:.1%} of the parameters are trained")
    losses = fit(model, loader, torch.optim.Adam(trainable, lr=5e-3), epochs=4)
    print(f"loss {sum(losses[:10]) / 10:.3f} -> {sum(losses[-20:]) / 20:.3f}")


if __name__ == "__main__":
    main()
