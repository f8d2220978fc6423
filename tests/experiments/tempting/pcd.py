import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class RBM(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(16, 32)
        self.chain = torch.bernoulli(torch.full((64, 16), 0.5))

    def free(self, v):
        return -F.softplus(self.w(v)).sum(1)

    def forward(self, v):
        with torch.no_grad():
            c = self.chain
            for _ in range(3):
                h = torch.bernoulli(torch.sigmoid(self.w(c)))
                c = torch.bernoulli(torch.sigmoid(h @ self.w.weight))
            self.chain = c
        return self.free(v).mean() - self.free(c).mean()


m = RBM()
x = (torch.rand(640, 16) > 0.8).float()
opt = torch.optim.SGD(m.parameters(), 0.05)
for _i in range(120):
    r = torch.randint(640, (64,))
    loss = m(x[r])
    opt.zero_grad()
    loss.backward()
    opt.step()
