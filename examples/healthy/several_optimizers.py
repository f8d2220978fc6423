"""A recommender: sparse embeddings under SparseAdam, the network on top of them under AdamW."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

USERS, ITEMS, TASTES = 120, 100, 3


def ratings(size: int, seed: int) -> TensorDataset:
    """Ratings that follow hidden tastes, standardised."""
    world = torch.Generator().manual_seed(7)
    user_tastes = torch.randn(USERS, TASTES, generator=world)
    item_tastes = torch.randn(ITEMS, TASTES, generator=world)
    generator = torch.Generator().manual_seed(seed)
    users = torch.randint(0, USERS, (size,), generator=generator)
    items = torch.randint(0, ITEMS, (size,), generator=generator)
    scores = (user_tastes[users] * item_tastes[items]).sum(1) / TASTES**0.5
    return TensorDataset(users, items, scores + 0.1 * torch.randn(size, generator=generator))


class Recommender(nn.Module):
    def __init__(self, dim: int = 8, hidden: int = 32) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, dim, sparse=True)
        self.items = nn.Embedding(ITEMS, dim, sparse=True)
        self.mix = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        nn.init.normal_(self.users.weight, std=0.5)
        nn.init.normal_(self.items.weight, std=0.5)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        return self.mix(self.users(users) * self.items(items)).squeeze(1)


def make_optimizers(model: Recommender) -> list[torch.optim.Optimizer]:
    embeddings = [*model.users.parameters(), *model.items.parameters()]
    matrices = [p for p in model.mix.parameters() if p.ndim > 1]
    biases = [p for p in model.mix.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": biases, "weight_decay": 0.0}]
    return [torch.optim.SparseAdam(embeddings, lr=3e-2), torch.optim.AdamW(groups, lr=3e-3)]


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, criterion: nn.Module) -> float:
    model.eval()
    total = sum(criterion(model(users, items), scores).item() * len(scores) for users, items, scores in loader)
    return total / len(loader.dataset)


def main() -> None:
    torch.manual_seed(0)
    train_loader = DataLoader(ratings(7680, seed=1), batch_size=128, shuffle=True)
    valid_loader = DataLoader(ratings(512, seed=2), batch_size=256)
    model = Recommender()
    criterion = nn.MSELoss()
    optimizers = make_optimizers(model)
    history = []
    for epoch in range(4):
        model.train()
        total = 0.0
        for users, items, scores in train_loader:
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = criterion(model(users, items), scores)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            total += loss.item() * len(scores)
        history.append(total / len(train_loader.dataset))
        print(f"epoch {epoch + 1}: train {history[-1]:.3f}, valid {evaluate(model, valid_loader, criterion):.3f}")
    print(f"loss {history[0]:.3f} -> {history[-1]:.3f}")


if __name__ == "__main__":
    main()
