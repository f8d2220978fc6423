"""A variational autoencoder of small black-and-white images of bars."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIDE = 8
PIXELS = SIDE * SIDE
LATENT = 6


def bars(size: int, seed: int) -> torch.Tensor:
    """Images with one thick horizontal and one thick vertical bar, and a few flipped pixels."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, SIDE - 1, (size,), generator=generator).tolist()
    columns = torch.randint(0, SIDE - 1, (size,), generator=generator).tolist()
    images = torch.zeros(size, SIDE, SIDE)
    for image, row, column in zip(images, rows, columns, strict=True):
        image[row : row + 2] = 1.0
        image[:, column : column + 2] = 1.0
    flipped = torch.rand(images.shape, generator=generator) < 0.02
    return torch.where(flipped, 1.0 - images, images).flatten(1)


class VAE(nn.Module):
    def __init__(self, pixel_mean: torch.Tensor, hidden: int = 128) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(PIXELS, hidden), nn.ReLU())
        self.mean = nn.Linear(hidden, LATENT)
        self.log_variance = nn.Linear(hidden, LATENT)
        self.decoder = nn.Sequential(nn.Linear(LATENT, hidden), nn.ReLU(), nn.Linear(hidden, PIXELS))
        # Begin at the mean image, so that no step is spent on learning it.
        with torch.no_grad():
            self.decoder[-1].bias.copy_(torch.logit(pixel_mean))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = self.encoder(images)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        latent = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.decoder(latent), mean, log_variance


def negative_elbo(logits, images, mean, log_variance) -> torch.Tensor:
    """Both terms are sums over one image, and the batch is averaged."""
    reconstruction = F.binary_cross_entropy_with_logits(logits, images, reduction="none").sum(dim=1)
    divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(dim=1)
    return (reconstruction + divergence).mean()


def run_epoch(model: VAE, loader: DataLoader, optimizer: torch.optim.Optimizer | None = None) -> float:
    """Train with an optimizer, evaluate without."""
    model.train(optimizer is not None)
    total = 0.0
    with torch.set_grad_enabled(optimizer is not None):
        for (images,) in loader:
            logits, mean, log_variance = model(images)
            loss = negative_elbo(logits, images, mean, log_variance)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item() * len(images)
    return total / len(loader.dataset)


def main() -> None:
    torch.manual_seed(0)
    images = bars(1600, seed=0)
    train_loader = DataLoader(TensorDataset(images), batch_size=64, shuffle=True)
    test_loader = DataLoader(TensorDataset(bars(256, seed=1)), batch_size=128)
    model = VAE(images.mean(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    history = []
    for epoch in range(12):
        history.append(run_epoch(model, train_loader, optimizer))
        print(f"epoch {epoch + 1}: train {history[-1]:.2f}, test {run_epoch(model, test_loader):.2f}")
    print(f"loss {history[0]:.2f} -> {history[-1]:.2f}")


if __name__ == "__main__":
    main()
