import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class D(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.randn(64, 1, 32, 32) * 0.2
        self.b = torch.zeros(64, 4)
        for i in range(64):
            a, b = torch.randint(2, 20, (2,)).tolist()
            self.x[i, 0, a : a + 8, b : b + 8] += 1
            self.b[i] = torch.tensor([b, a, b + 8, a + 8.0])

    def __len__(self):
        return 64

    def __getitem__(self, i):
        x, b = self.x[i], self.b[i : i + 1].clone()
        if torch.rand(()) < 0.5:
            x = x.flip(-1)
            b[:, [0, 2]] = 32 - b[:, [2, 0]]
        return x, {"boxes": b / 32}


m = nn.Sequential(nn.Conv2d(1, 8, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 4))
opt = torch.optim.Adam(m.parameters(), 1e-3)
for _e in range(10):
    for x, t in torch.utils.data.DataLoader(D(), 16, shuffle=True):
        loss = F.l1_loss(m(x), t["boxes"][:, 0])
        opt.zero_grad()
        loss.backward()
        opt.step()
