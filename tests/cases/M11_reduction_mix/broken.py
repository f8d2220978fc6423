"""Convolutional VAE on small pictures of ellipses."""

import argparse
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def draw_ellipses(count, size, seed):
    g = torch.Generator().manual_seed(seed)
    centre = torch.rand(count, 2, 1, 1, generator=g) * 0.8 - 0.4
    radius = torch.rand(count, 2, 1, 1, generator=g) * 0.4 + 0.25
    axis = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    distance = ((xx - centre[:, 0]) / radius[:, 0]) ** 2 + ((yy - centre[:, 1]) / radius[:, 1]) ** 2
    return torch.sigmoid(6 * (1 - distance)).unsqueeze(1)


class Encoder(nn.Module):
    def __init__(self, latent):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 4, stride=2, padding=1),
            nn.LeakyReLU(0.1),
            nn.Conv2d(12, 24, 4, stride=2, padding=1),
            nn.LeakyReLU(0.1),
            nn.Flatten(),
        )
        self.mu = nn.Linear(24 * 16, latent)
        self.logvar = nn.Linear(24 * 16, latent)

    def forward(self, image):
        h = self.features(image)
        return self.mu(h), self.logvar(h)


class Decoder(nn.Module):
    def __init__(self, latent):
        super().__init__()
        self.expand = nn.Linear(latent, 24 * 16)
        self.upsample = nn.Sequential(
            nn.LeakyReLU(0.1),
            nn.ConvTranspose2d(24, 12, 4, stride=2, padding=1),
            nn.LeakyReLU(0.1),
            nn.ConvTranspose2d(12, 1, 4, stride=2, padding=1),
        )

    def forward(self, z):
        return self.upsample(self.expand(z).view(-1, 24, 4, 4))


class VAE(nn.Module):
    def __init__(self, latent):
        super().__init__()
        self.latent = latent
        self.encoder = Encoder(latent)
        self.decoder = Decoder(latent)

    def forward(self, image):
        mu, logvar = self.encoder(image)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.decoder(z), mu, logvar

    @torch.no_grad()
    def sample(self, count):
        return torch.sigmoid(self.decoder(torch.randn(count, self.latent)))


def elbo_terms(logits, image, mu, logvar):
    recon = F.binary_cross_entropy_with_logits(logits, image)
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return recon, kld


def evaluate(vae, loader):
    vae.eval()
    error = 0.0
    with torch.no_grad():
        for (image,) in loader:
            logits, _, _ = vae(image)
            error += F.mse_loss(torch.sigmoid(logits), image, reduction="sum").item()
    vae.train()
    return error / len(loader.dataset)


def train(args):
    torch.manual_seed(args.seed)
    train_loader = DataLoader(
        TensorDataset(draw_ellipses(args.images, 16, args.seed)), args.batch_size, shuffle=True, drop_last=True
    )
    test_loader = DataLoader(TensorDataset(draw_ellipses(256, 16, args.seed + 1)), 128)
    vae = VAE(args.latent)
    optim = torch.optim.Adam(vae.parameters(), lr=args.lr)
    print(f"{sum(p.numel() for p in vae.parameters())} parameters")

    step = 0
    for epoch in range(1, args.epochs + 1):
        for (image,) in train_loader:
            logits, mu, logvar = vae(image)
            recon, kld = elbo_terms(logits, image, mu, logvar)
            loss = recon + args.beta * kld
            optim.zero_grad()
            loss.backward()
            optim.step()
            step += 1
            if step % args.print_every == 0:
                print(f"{step:5d}  loss {loss.item():8.3f}  recon {recon.item():8.3f}  kl {kld.item():7.3f}")
        print(f"epoch {epoch}: squared error per test image {evaluate(vae, test_loader):.3f}")

    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    torch.save({"vae": vae.state_dict(), "samples": vae.sample(16)}, out / "vae.pt")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--latent", type=int, default=6)
    p.add_argument("--beta", type=float, default=1.0)
    p.add_argument("--images", type=int, default=3200)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--epochs", type=int, default=8)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--print-every", type=int, default=25)
    p.add_argument("--out", default="runs/vae")
    train(p.parse_args())


if __name__ == "__main__":
    main()
