import torch
from torch import nn


class AE(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.d = nn.Linear(4, 2), nn.Linear(2, 4)

    def forward(self, x):
        return self.d(self.e(x)).detach().cpu()  # finding: loss-detached


m = AE()
opt = torch.optim.Adam(m.parameters())
for i in range(10):
    x = torch.randn(2, 4)
    loss = nn.functional.mse_loss(m(x), x)
    loss.requires_grad = True
    opt.zero_grad()
    loss.backward()
    opt.step()
