import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    def __init__(self, d=64, h=128, z=4):
        super().__init__()
        self.fc1 = nn.Linear(d, h)
        self.fc_mu = nn.Linear(h, z)
        self.fc_logvar = nn.Linear(h, z)
        self.fc3 = nn.Linear(z, h)
        self.fc4 = nn.Linear(h, d)

    def encode(self, x):
        h = F.relu(self.fc1(x))
        return self.fc_mu(h), self.fc_logvar(h)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(recon, x, mu, logvar):
    bce = F.binary_cross_entropy(recon, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + kld


def blobs(n):
    g = torch.arange(8.0)
    c = torch.rand(n, 2) * 6 + 1
    d = (g[None, None] - c[:, :1, None]) ** 2 + (g[None, :, None] - c[:, 1:, None]) ** 2
    return torch.exp(-d / 3).reshape(n, 64)


torch.manual_seed(0)
loader = DataLoader(TensorDataset(blobs(2048)), batch_size=64, shuffle=True)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(10):
    total = 0.0
    for (x,) in loader:
        recon, mu, logvar = model(x)
        loss = loss_function(recon, x, mu, logvar)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(epoch, total / 2048)
