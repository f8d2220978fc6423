import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(20, 16)
        self.r = nn.LSTM(16, 32, batch_first=True)
        self.h = nn.Linear(32, 20)

    def forward(self, x, h):
        y, h = self.r(self.e(x), h)
        return self.h(y), h


data = (torch.arange(20000) * 7 % 20).view(16, -1)
m = LM()
opt = torch.optim.Adam(m.parameters(), 3e-3)
h = None
for i in range(0, 1200, 10):
    x, y = data[:, i : i + 10], data[:, i + 1 : i + 11]
    if h is not None:
        h = tuple(v.detach() for v in h)
    o, h = m(x, h)
    loss = F.cross_entropy(o.reshape(-1, 20), y.reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
