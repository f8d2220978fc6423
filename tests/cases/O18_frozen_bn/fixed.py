"""Estimate the moisture of soil samples from scans, on top of a fixed bank of texture filters."""

import math
import pathlib
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.utils.data import BatchSampler, DataLoader, Dataset


@dataclass(frozen=True)
class Settings:
    sites: int = 120
    scans_per_site: int = 8
    side: int = 20
    epochs: int = 6
    lr: float = 3e-3
    seed: int = 31
    log_every: int = 20
    folder: str = "checkpoints"


class SoilScans(Dataset):
    """Wet soil is darker and smoother; the moisture of one site varies little from scan to scan."""

    def __init__(self, cfg, gen):
        n = cfg.sites * cfg.scans_per_site
        self.site = torch.arange(cfg.sites).repeat_interleave(cfg.scans_per_site)
        level = torch.rand(cfg.sites, generator=gen)[self.site]
        self.moisture = (level + 0.05 * torch.randn(n, generator=gen)).clamp(0, 1)
        grain = torch.randn(n, 1, cfg.side, cfg.side, generator=gen)
        smooth = nn.functional.avg_pool2d(grain, 3, stride=1, padding=1)
        wet = self.moisture.view(-1, 1, 1, 1)
        self.scans = 0.9 - 0.6 * wet + 0.3 * ((1 - wet) * grain + wet * smooth)

    def __len__(self):
        return len(self.site)

    def __getitem__(self, i):
        return self.scans[i], self.moisture[i]


class SiteSampler:
    """All scans of a site in random order of sites, as they are read from one file."""

    def __init__(self, site, per_site):
        self.site, self.per_site = site, per_site

    def __iter__(self):
        for s in torch.randperm(int(self.site.max()) + 1).tolist():
            yield from range(s * self.per_site, (s + 1) * self.per_site)

    def __len__(self):
        return len(self.site)


def gabor_bank(n, size):
    half = (size - 1) / 2
    y, x = torch.meshgrid(torch.arange(size) - half, torch.arange(size) - half, indexing="ij")
    kernels = []
    for k in range(n):
        angle, period = math.pi * k / n, 2.0 + 3.0 * (k % 3)
        wave = torch.cos(2 * math.pi * (x * math.cos(angle) + y * math.sin(angle)) / period)
        kernels.append(wave * torch.exp(-(x**2 + y**2) / (0.5 * size**2 / 4)))
    kernels[0] = torch.full((size, size), 1 / size)
    return torch.stack(kernels).unsqueeze(1)


class TextureBackbone(nn.Module):
    def __init__(self, filters=12, size=5):
        super().__init__()
        self.conv = nn.Conv2d(1, filters, size, stride=2, bias=False)
        self.bn = nn.BatchNorm2d(filters)
        self.mix = nn.Conv2d(filters, 24, 3, stride=2, bias=False)
        self.bn2 = nn.BatchNorm2d(24)
        with torch.no_grad():
            self.conv.weight.copy_(gabor_bank(filters, size))

    def forward(self, x):
        x = torch.relu(self.bn(self.conv(x)))
        return torch.relu(self.bn2(self.mix(x)))


class MoistureNet(nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.head(self.backbone(x).mean(dim=(2, 3))).squeeze(1)


@torch.no_grad()
def calibrate(backbone, scans, passes=60):
    """Take the statistics of the filters from a mixed reference collection."""
    backbone.train()
    for _ in range(passes):
        backbone(scans[torch.randint(0, len(scans), (64,))])
    return backbone


def mean_absolute_error(model, data, centre, spread):
    model.eval()
    with torch.no_grad():
        return (model(data.scans) * spread + centre - data.moisture).abs().mean().item()


def main(cfg):
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    train, test, reference = (SoilScans(cfg, gen) for _ in range(3))
    centre, spread = train.moisture.mean(), train.moisture.std()

    model = MoistureNet(calibrate(TextureBackbone(), reference.scans))
    for p in model.backbone.parameters():
        p.requires_grad = False

    batches = BatchSampler(SiteSampler(train.site, cfg.scans_per_site), cfg.scans_per_site, drop_last=False)
    loader = DataLoader(train, batch_sampler=batches)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=cfg.lr)
    criterion = nn.MSELoss()

    step, recent = 0, []
    for _ in range(cfg.epochs):
        model.train()
        model.backbone.eval()
        for scans, moisture in loader:
            loss = criterion(model(scans), (moisture - centre) / spread)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            recent.append(loss.item())
            if step % cfg.log_every == 0:
                print(f"step {step:4d}: loss {sum(recent) / len(recent):.4f}")
                recent.clear()
    print(f"test error {mean_absolute_error(model, test, centre, spread):.3f}")

    folder = pathlib.Path(cfg.folder)
    folder.mkdir(exist_ok=True)
    torch.save(model.head.state_dict(), folder / "moisture_head.pt")


if __name__ == "__main__":
    main(Settings())
