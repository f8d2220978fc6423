import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class S2S(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(10, 32)
        self.enc = nn.GRU(32, 32, batch_first=True)
        self.c = nn.GRUCell(32, 32)
        self.h = nn.Linear(32, 10)

    def forward(self, x, y):
        _, h = self.enc(self.e(x))
        h = h[0]
        t = y[:, 0]
        out = []
        for i in range(1, y.shape[1]):
            h = self.c(self.e(t), h)
            o = self.h(h)
            out.append(o)
            t = y[:, i] if self.training else o.argmax(1)
        return torch.stack(out, 1)


x = torch.randint(1, 10, (1000, 5))
y = torch.cat([torch.zeros(1000, 1, dtype=torch.long), torch.cumsum(x, 1) % 10], 1)
m = S2S()
opt = torch.optim.Adam(m.parameters(), 5e-3)
for _i in range(200):
    r = torch.randint(1000, (64,))
    o = m(x[r], y[r])
    loss = F.cross_entropy(o.reshape(-1, 10), y[r][:, 1:].reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
