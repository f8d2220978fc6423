import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Views(torch.utils.data.Dataset):
    def __init__(self):
        self.x = F.avg_pool2d(torch.randn(128, 3, 24, 24), 3, 1, 1)

    def __len__(self):
        return 128

    def aug(self, x):
        if torch.rand(()) < 0.5:
            x = x.flip(-1)
        return x + 0.05 * torch.randn_like(x)

    def __getitem__(self, i):
        return self.aug(self.x[i]), self.aug(self.x[i])


m = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 22 * 22, 16))
opt = torch.optim.Adam(m.parameters(), 1e-3)
for _e in range(6):
    for a, b in torch.utils.data.DataLoader(Views(), 32, shuffle=True):
        z = F.normalize(m(torch.cat([a, b])), dim=1)
        n = len(a)
        scores = z @ z.T / 0.5
        scores.fill_diagonal_(-1e9)
        loss = F.cross_entropy(scores, torch.cat([torch.arange(n) + n, torch.arange(n)]))
        opt.zero_grad()
        loss.backward()
        opt.step()
