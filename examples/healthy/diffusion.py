"""A denoising diffusion model (DDPM) of two moons, with an exponential moving average of its weights."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

NOISE_STEPS = 50
TRAIN_STEPS = 400
BATCH_SIZE = 128


def two_moons(size: int) -> torch.Tensor:
    """Two interleaved half circles, standardised."""
    angle = math.pi * torch.rand(size)
    upper = torch.rand(size) < 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos())
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin())
    points = torch.stack([x, y], dim=1) + 0.05 * torch.randn(size, 2)
    return (points - points.mean(0)) / points.std(0)


class NoisePredictor(nn.Module):
    def __init__(self, hidden: int = 96, frequencies: int = 8) -> None:
        super().__init__()
        self.register_buffer("frequencies", 2.0 ** torch.arange(frequencies) * math.pi / NOISE_STEPS)
        self.time = nn.Sequential(nn.Linear(2 * frequencies, hidden), nn.SiLU())
        self.inputs = nn.Linear(2, hidden)
        self.middle = nn.Sequential(
            nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU()
        )
        self.output = nn.Linear(hidden, 2)

    def forward(self, points: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        angles = time.unsqueeze(1) * self.frequencies
        embedded = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        return self.output(self.middle(self.inputs(points) + embedded))


class NoiseScheduler:
    """How much of the signal is left after each step of adding noise."""

    def __init__(self) -> None:
        self.beta = torch.linspace(1e-3, 0.2, NOISE_STEPS)
        self.alpha = 1 - self.beta
        self.kept = self.alpha.cumprod(0)

    def add_noise(self, points: torch.Tensor, noise: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        kept = self.kept[time].unsqueeze(1)
        return kept.sqrt() * points + (1 - kept).sqrt() * noise

    def step(self, predicted: torch.Tensor, time: int, points: torch.Tensor) -> torch.Tensor:
        """One step back from noise to data."""
        mean = (points - self.beta[time] / (1 - self.kept[time]).sqrt() * predicted) / self.alpha[time].sqrt()
        return mean + self.beta[time].sqrt() * torch.randn_like(points) if time > 0 else mean


@torch.no_grad()
def sample(model: nn.Module, scheduler: NoiseScheduler, size: int) -> torch.Tensor:
    model.eval()
    points = torch.randn(size, 2)
    for time in reversed(range(NOISE_STEPS)):
        points = scheduler.step(model(points, torch.full((size,), time)), time, points)
    return points


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, decay: float = 0.98) -> None:
    for kept, current in zip(average.parameters(), model.parameters(), strict=True):
        kept.lerp_(current, 1 - decay)


def main() -> None:
    torch.manual_seed(0)
    data = two_moons(4000)
    model, scheduler = NoisePredictor(), NoiseScheduler()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses = []
    for step in range(TRAIN_STEPS):
        points = data[torch.randint(0, len(data), (BATCH_SIZE,))]
        noise = torch.randn_like(points)
        time = torch.randint(0, NOISE_STEPS, (BATCH_SIZE,))
        loss = F.mse_loss(model(scheduler.add_noise(points, noise, time), time), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update_average(average, model)
        losses.append(loss.item())
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {sum(losses[-50:]) / 50:.3f}")
    samples = sample(average, scheduler, 500)
    distance = torch.cdist(samples, data).min(dim=1).values.mean()
    print(f"samples lie {distance:.3f} from the nearest data point")
    print(f"loss {sum(losses[:10]) / 10:.3f} -> {sum(losses[-50:]) / 50:.3f}")


if __name__ == "__main__":
    main()
