import os
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

conf = SimpleNamespace(
    z_dim=8,
    h_dim=128,
    img=12,
    beta=0.5,
    lr=1e-3,
    batch_size=64,
    n_epochs=8,
    n_images=5000,
    print_every=40,
    seed=0,
    out_dir="runs/vae_bumps",
)


def draw_bumps(n, img, rs):
    """Soft bumps: one or two per image, as brightness between 0 and 1."""
    grid = np.arange(img)
    out = np.zeros((n, img, img), dtype=np.float32)
    for _ in range(2):
        cx, cy = rs.uniform(2, img - 3, (2, n, 1, 1))
        w = rs.uniform(1.0, 2.2, (n, 1, 1))
        keep = rs.random_sample((n, 1, 1)) < 0.8
        out += keep * np.exp(-((grid[None, None] - cx) ** 2 + (grid[None, :, None] - cy) ** 2) / (2 * w**2))
    return torch.from_numpy(np.clip(out, 0, 1).astype(np.float32)).flatten(1)


class VAE(nn.Module):
    def __init__(self, x_dim, h_dim, z_dim):
        super().__init__()
        self.fc1 = nn.Linear(x_dim, h_dim)
        self.fc2 = nn.Linear(h_dim, h_dim)
        self.fc_mu = nn.Linear(h_dim, z_dim)
        self.fc_logvar = nn.Linear(h_dim, z_dim)
        self.fc3 = nn.Linear(z_dim, h_dim)
        self.fc4 = nn.Linear(h_dim, h_dim)
        self.fc5 = nn.Linear(h_dim, x_dim)

    def encode(self, x):
        h = F.leaky_relu(self.fc2(F.leaky_relu(self.fc1(x), 0.1)), 0.1)
        return self.fc_mu(h), self.fc_logvar(h).clamp(-10.0, 10.0)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + std * torch.randn_like(std)

    def decode(self, z):
        h = F.leaky_relu(self.fc4(F.leaky_relu(self.fc3(z), 0.1)), 0.1)
        return self.fc5(h)

    def forward(self, x):
        mu, logvar = self.encode(x)
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar


def elbo_terms(logits, x, mu, logvar):
    recon = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1).mean()
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
    return recon, kl


def epoch_order(n, batch_size):
    return torch.randperm(n).split(batch_size)


@torch.no_grad()
def held_out(vae, x, beta):
    vae.eval()
    recon, kl = elbo_terms(*[vae(x)[0], x, *vae.encode(x)])
    return (recon + beta * kl).item()


def train():
    torch.manual_seed(conf.seed)
    rs = np.random.RandomState(conf.seed)
    x_train = draw_bumps(conf.n_images, conf.img, rs)
    x_test = draw_bumps(500, conf.img, rs)

    vae = VAE(conf.img**2, conf.h_dim, conf.z_dim)
    opt = torch.optim.Adam(vae.parameters(), lr=conf.lr)
    step = 0
    for epoch in range(conf.n_epochs):
        vae.train()
        for idx in epoch_order(len(x_train), conf.batch_size):
            x = x_train[idx]
            logits, mu, logvar = vae(x)
            recon, kl = elbo_terms(logits, x, mu, logvar)
            loss = recon + conf.beta * kl
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % conf.print_every == 0:
                print(f"{epoch:2d} {step:5d}  loss {loss.item():10.3f}  rec {recon.item():10.3f}  kl {kl.item():8.3f}")
        print(f"-- epoch {epoch} done, held-out loss {held_out(vae, x_test, conf.beta):.3f}")
    return vae


def save_samples(vae, path, n=16):
    vae.eval()
    with torch.no_grad():
        imgs = torch.sigmoid(vae.decode(torch.randn(n, conf.z_dim))).view(n, conf.img, conf.img)
    np.save(path, imgs.numpy())


if __name__ == "__main__":
    model = train()
    os.makedirs(conf.out_dir, exist_ok=True)
    save_samples(model, os.path.join(conf.out_dir, "samples.npy"))
    torch.save(model.state_dict(), os.path.join(conf.out_dir, "vae.pt"))
