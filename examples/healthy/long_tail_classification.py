"""Long-tailed classes: the rarest is eight times rarer than the commonest, and class weights make up for it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FEATURES = 10
COUNTS = [800, 480, 280, 160, 100]


def long_tail(counts: list[int], seed: int) -> TensorDataset:
    """One bent cloud of points per class, mixed in random order."""
    centres = 1.2 * torch.randn(len(counts), FEATURES, generator=torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    cloud = torch.randn(len(labels), FEATURES, generator=generator)
    features = centres[labels] + cloud + 0.4 * cloud.roll(1, dims=1) ** 2
    return TensorDataset((features - features.mean(0)) / features.std(0), labels)


class Net(nn.Module):
    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.fc1 = nn.Linear(FEATURES, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, len(COUNTS))
        self.act = nn.LeakyReLU(0.1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.fc3(self.act(self.fc2(self.act(self.fc1(features)))))


@torch.no_grad()
def recall_per_class(model: nn.Module, loader: DataLoader) -> list[float]:
    model.eval()
    right, seen = torch.zeros(len(COUNTS)), torch.zeros(len(COUNTS))
    for features, labels in loader:
        hits = labels[model(features).argmax(1) == labels]
        right += torch.bincount(hits, minlength=len(COUNTS))
        seen += torch.bincount(labels, minlength=len(COUNTS))
    return (right / seen).tolist()


def main() -> None:
    torch.manual_seed(0)
    train_loader = DataLoader(long_tail(COUNTS, seed=1), batch_size=64, shuffle=True)
    test_loader = DataLoader(long_tail([60] * len(COUNTS), seed=2), batch_size=150)
    counts = torch.tensor(COUNTS, dtype=torch.float32)
    weights = counts.sum() / (len(COUNTS) * counts)
    model = Net()
    criterion = nn.CrossEntropyLoss(weight=weights)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    history = []
    for epoch in range(8):
        model.train()
        total = 0.0
        for features, labels in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(features), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        history.append(total / len(train_loader))
        recall = " ".join(f"{share:.0%}" for share in recall_per_class(model, test_loader))
        print(f"epoch {epoch + 1}: loss {history[-1]:.3f}, recall {recall}")
    print(f"loss {history[0]:.3f} -> {history[-1]:.3f}")


if __name__ == "__main__":
    main()
