import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class D(torch.utils.data.Dataset):
    def __init__(self):
        self.x = F.avg_pool2d(torch.randn(96, 1, 32, 32), 5, 1, 2) * 3

    def __len__(self):
        return 96

    def __getitem__(self, i):
        x = F.pad(self.x[i], (4, 4, 4, 4))
        a, b = torch.randint(9, (2,)).tolist()
        x = x[:, a : a + 32, b : b + 32]
        if torch.rand(()) < 0.5:
            x = x.flip(-1)
        return x + 0.3 * torch.randn_like(x), x


m = nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 1, 5, padding=2))
opt = torch.optim.Adam(m.parameters(), 3e-3)
for _e in range(20):
    for a, b in torch.utils.data.DataLoader(D(), 16, shuffle=True):
        loss = F.mse_loss(m(a), b)
        opt.zero_grad()
        loss.backward()
        opt.step()
