"""A generative adversarial network learns a ring of eight Gaussians."""

import math

import torch
from torch import nn

NOISE = 8
MODES = 8
BATCH_SIZE = 128
STEPS = 300


def real_points(size: int) -> torch.Tensor:
    angle = 2 * math.pi * torch.randint(0, MODES, (size,)) / MODES
    centres = torch.stack([angle.cos(), angle.sin()], dim=1)
    return math.sqrt(2) * centres + 0.1 * torch.randn(size, 2)


class Generator(nn.Module):
    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(NOISE, hidden),
            nn.LeakyReLU(0.2),
            nn.Linear(hidden, hidden),
            nn.LeakyReLU(0.2),
            nn.Linear(hidden, 2),
        )

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return self.net(noise)


class Discriminator(nn.Module):
    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, hidden),
            nn.LeakyReLU(0.2),
            nn.Linear(hidden, hidden),
            nn.LeakyReLU(0.2),
            nn.Linear(hidden, 1),
        )

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.net(points).squeeze(1)


@torch.no_grad()
def distance_from_ring(generator: Generator) -> float:
    """How far samples lie from the ring the real points lie on."""
    generator.eval()
    samples = generator(torch.randn(512, NOISE))
    generator.train()
    return (samples.norm(dim=1) - math.sqrt(2)).abs().mean().item()


def main() -> None:
    torch.manual_seed(0)
    generator, discriminator = Generator(), Discriminator()
    criterion = nn.BCEWithLogitsLoss()
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    real_label, fake_label = torch.ones(BATCH_SIZE), torch.zeros(BATCH_SIZE)

    first = distance_from_ring(generator)
    for step in range(STEPS):
        # Discriminator: real points against fake ones that carry no gradient back.
        discriminator.zero_grad()
        loss_real = criterion(discriminator(real_points(BATCH_SIZE)), real_label)
        loss_real.backward()
        fake = generator(torch.randn(BATCH_SIZE, NOISE))
        loss_fake = criterion(discriminator(fake.detach()), fake_label)
        loss_fake.backward()
        optimizer_d.step()

        # Generator: the discriminator shall take its points for real ones.
        generator.zero_grad()
        loss_g = criterion(discriminator(fake), real_label)
        loss_g.backward()
        optimizer_g.step()

        if (step + 1) % 100 == 0:
            loss_d = loss_real.item() + loss_fake.item()
            print(f"step {step + 1}: D {loss_d:.3f}, G {loss_g.item():.3f}, off {distance_from_ring(generator):.3f}")
    print(f"distance from the ring {first:.3f} -> {distance_from_ring(generator):.3f}")


if __name__ == "__main__":
    main()
