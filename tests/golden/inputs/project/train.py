"""Three mistakes, one of them with an ignore comment."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, 64)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(torch.relu(self.hidden(x))))


def evaluate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    with torch.no_grad():
        hits = sum(int((model(x).argmax(1) == y).sum()) for x, y in loader)
    return hits / len(loader.dataset)


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(512, 20)
    y = x[:, :4].argmax(1)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    model = Net(20, 4)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    total = 0.0
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            total += loss  # unstuck: ignore[M03]
        print(f"epoch {epoch + 1}  loss {total:.3f}  accuracy {evaluate(model, loader):.1%}")


if __name__ == "__main__":
    main()
