"""Predict the price of a flat from a table of mixed columns; features and prices are standardised."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def flats(size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Area, rooms, age, floor and distance to the centre, in their own units; the price in euros."""
    area = 30 + 120 * torch.rand(size, generator=generator)
    rooms = (area / 28 + torch.randn(size, generator=generator)).round().clamp(1, 8)
    age = 90 * torch.rand(size, generator=generator)
    floor = torch.randint(0, 12, (size,), generator=generator).float()
    distance = 12 * torch.rand(size, generator=generator)
    base = 3500 * area * torch.exp(-distance / 9) + 9000 * rooms
    price = base * (1 - 0.004 * age + 0.00003 * age**2) + 2500 * floor
    price = price * (1 + 0.05 * torch.randn(size, generator=generator))
    return torch.stack([area, rooms, age, floor, distance], dim=1), price.unsqueeze(1)


class Standardiser:
    """Mean and spread of the training set, used for every set."""

    def __init__(self, values: torch.Tensor) -> None:
        self.mean, self.std = values.mean(0), values.std(0)

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        return (values - self.mean) / self.std


class PriceNet(nn.Module):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(features, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def mean_error(model: nn.Module, features: torch.Tensor, prices: torch.Tensor, scale: Standardiser) -> float:
    """Mean absolute error in euros."""
    model.eval()
    with torch.no_grad():
        predicted = model(features) * scale.std + scale.mean
    return (predicted - prices).abs().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=48)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    features, prices = flats(1500, generator)
    feature_scale, price_scale = Standardiser(features[:1280]), Standardiser(prices[:1280])
    x, y = feature_scale(features), price_scale(prices)
    loader = DataLoader(TensorDataset(x[:1280], y[:1280]), batch_size=args.batch_size, shuffle=True)

    model = PriceNet(x.shape[1], args.hidden)
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    history = []
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for batch, target in loader:
            optimizer.zero_grad()
            loss = criterion(model(batch), target)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        history.append(total / len(loader.dataset))
        error = mean_error(model, x[1280:], prices[1280:], price_scale)
        print(f"epoch {epoch + 1}: loss {history[-1]:.4f}, validation error {error:,.0f} EUR")
    print(f"loss {history[0]:.4f} -> {history[-1]:.4f}")


if __name__ == "__main__":
    main()
