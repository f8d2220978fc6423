"""An autoencoder compresses signals of 32 samples into four numbers."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLES = 32


class Signals(Dataset):
    """Sums of two waves with random amplitudes and phases: four degrees of freedom, standardised."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        time = torch.arange(SAMPLES) / SAMPLES
        signals = 0.05 * torch.randn(size, SAMPLES, generator=generator)
        for frequency in (1, 3):
            amplitude = 0.5 + torch.rand(size, 1, generator=generator)
            phase = 2 * math.pi * torch.rand(size, 1, generator=generator)
            signals += amplitude * torch.sin(2 * math.pi * frequency * time + phase)
        self.signals = (signals - signals.mean()) / signals.std()

    def __len__(self) -> int:
        return len(self.signals)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.signals[index]


class Autoencoder(nn.Module):
    def __init__(self, bottleneck: int = 4) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(SAMPLES, 48), nn.GELU(), nn.Linear(48, bottleneck))
        self.decoder = nn.Sequential(nn.Linear(bottleneck, 48), nn.GELU(), nn.Linear(48, SAMPLES))

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(signals))


class Trainer:
    def __init__(self, model: nn.Module, lr: float) -> None:
        self.model = model
        self.criterion = nn.MSELoss()
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def train_epoch(self, loader: DataLoader) -> float:
        self.model.train()
        total = 0.0
        for signals in loader:
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(signals), signals)
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / len(loader)

    @torch.no_grad()
    def validate(self, loader: DataLoader) -> float:
        self.model.eval()
        return sum(self.criterion(self.model(signals), signals).item() for signals in loader) / len(loader)


def main() -> None:
    torch.manual_seed(0)
    train_loader = DataLoader(Signals(1280, seed=1), batch_size=64, shuffle=True)
    valid_loader = DataLoader(Signals(256, seed=2), batch_size=128)
    trainer = Trainer(Autoencoder(), lr=4e-3)
    history = []
    for epoch in range(15):
        history.append(trainer.train_epoch(train_loader))
        print(f"epoch {epoch + 1}: train {history[-1]:.4f}, valid {trainer.validate(valid_loader):.4f}")
    print(f"loss {history[0]:.4f} -> {history[-1]:.4f}")


if __name__ == "__main__":
    main()
