import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Generator(nn.Module):
    def __init__(self, nz=16):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, 32, 4, 1, 0, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(True),
            nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(True),
            nn.ConvTranspose2d(16, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2, 1),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(16, 32, 4, 2, 1),
            nn.BatchNorm2d(32),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(32, 1, 4, 1, 0),
            nn.Sigmoid(),
        )

    def forward(self, x):
        return self.main(x).view(-1)


def make_images(n):
    grid = torch.arange(16.0)
    cx, cy = torch.rand(n, 1, 1) * 8 + 4, torch.rand(n, 1, 1) * 8 + 4
    d = (grid[None, None] - cx) ** 2 + (grid[None, :, None] - cy) ** 2
    return (torch.exp(-d / 6) * 2 - 1)[:, None]


torch.manual_seed(0)
loader = DataLoader(TensorDataset(make_images(1024)), batch_size=64, shuffle=True, drop_last=True)
netG, netD = Generator(), Discriminator()
criterion = nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
for epoch in range(8):
    for (data,) in loader:
        netD.zero_grad()
        b = data.size(0)
        label = torch.full((b,), 1.0)
        errD_real = criterion(netD(data), label)
        errD_real.backward()
        fake = netG(torch.randn(b, 16, 1, 1))
        label.fill_(0.0)
        errD_fake = criterion(netD(fake.detach()), label)
        errD_fake.backward()
        optimizerD.step()
        netG.zero_grad()
        label.fill_(1.0)
        errG = criterion(netD(fake), label)
        errG.backward()
        optimizerG.step()
    print(epoch, (errD_real + errD_fake).item(), errG.item())
