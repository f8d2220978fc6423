"""The learning rate is halved whenever the validation loss no longer falls: learn a product of noisy inputs."""

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 14


def products(size: int, seed: int) -> TensorDataset:
    """Six inputs; the target is made of two products, standardised by construction, plus noise."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, 6, generator=generator)
    wanted = (inputs[:, 0] * inputs[:, 1] + inputs[:, 2] * inputs[:, 3]) / 2**0.5
    return TensorDataset(inputs, wanted + 0.2 * torch.randn(size, generator=generator))


class ProductNet(nn.Module):
    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, hidden), nn.Linear(hidden, hidden)])
        self.output = nn.Linear(hidden, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            inputs = torch.nn.functional.silu(layer(inputs))
        return self.output(inputs).squeeze(-1)


def train(model: nn.Module, loader: DataLoader, criterion: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    model.train()
    total = 0.0
    for inputs, wanted in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(wanted)
    return total / len(loader.dataset)


def validate(model: nn.Module, loader: DataLoader, criterion: nn.Module) -> float:
    model.eval()
    total = 0.0
    with torch.no_grad():
        for inputs, wanted in loader:
            total += criterion(model(inputs), wanted).item() * len(wanted)
    return total / len(loader.dataset)


def main() -> None:
    torch.manual_seed(0)
    train_loader = DataLoader(products(1600, seed=1), batch_size=64, shuffle=True)
    valid_loader = DataLoader(products(400, seed=2), batch_size=200)
    model = ProductNet()
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = ReduceLROnPlateau(optimizer, mode="min", factor=0.5, patience=1)
    history = []
    for epoch in range(EPOCHS):
        history.append(train(model, train_loader, criterion, optimizer))
        valid_loss = validate(model, valid_loader, criterion)
        scheduler.step(valid_loss)
        lr = optimizer.param_groups[0]["lr"]
        print(f"epoch {epoch + 1}: train {history[-1]:.3f}, valid {valid_loss:.3f}, learning rate {lr:.1e}")
    print(f"loss {history[0]:.3f} -> {history[-1]:.3f}")


if __name__ == "__main__":
    main()
