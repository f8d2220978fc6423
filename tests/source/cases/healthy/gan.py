import torch
from torch import nn

netG, netD = nn.Linear(8, 16), nn.Sequential(nn.Linear(16, 1), nn.Sigmoid())
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCELoss()

for epoch in range(5):
    for real, _ in [(torch.randn(4, 16), None)] * 3:
        netD.zero_grad()
        label = torch.full((4, 1), 1.0)
        errD_real = criterion(netD(real), label)
        errD_real.backward()
        fake = netG(torch.randn(4, 8))
        errD_fake = criterion(netD(fake.detach()), torch.zeros(4, 1))
        errD_fake.backward()
        optimizerD.step()

        netG.zero_grad()
        errG = criterion(netD(fake), label)
        errG.backward()
        optimizerG.step()
