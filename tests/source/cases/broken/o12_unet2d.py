import torch
from torch import nn


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Conv2d(3, 8, 3, padding=1)
        self.dec = nn.Conv2d(8, 4, 1)
        self.act = nn.Softmax2d()

    def forward(self, x):
        return self.act(self.dec(torch.relu(self.enc(x))))  # finding: double-softmax


net = UNet()
opt = torch.optim.Adam(net.parameters())
crit = nn.CrossEntropyLoss()
for i in range(10):
    loss = crit(net(torch.randn(2, 3, 8, 8)), torch.randint(0, 4, (2, 8, 8)))
    opt.zero_grad()
    loss.backward()
    opt.step()
