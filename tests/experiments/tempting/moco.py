import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Enc(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(8, 16)
        self.k = nn.Linear(8, 16)
        self.register_buffer("queue", F.normalize(torch.randn(16, 256), dim=0))
        self.ptr = 0

    def forward(self, a, b):
        q = F.normalize(self.q(a), dim=1)
        with torch.no_grad():
            for p, r in zip(self.q.parameters(), self.k.parameters(), strict=True):
                r.data.mul_(0.99).add_(p.data, alpha=0.01)
            k = F.normalize(self.k(b), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone()], 1) / 0.2
        n = len(k)
        self.queue[:, self.ptr : self.ptr + n] = k.T
        self.ptr = (self.ptr + n) % 256
        return logits


x = torch.randn(1024, 8)
m = Enc()
opt = torch.optim.SGD(m.q.parameters(), 0.1)
dl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), 64, shuffle=True)
for _e in range(8):
    for (b,) in dl:
        loss = F.cross_entropy(
            m(b + 0.1 * torch.randn_like(b), b + 0.1 * torch.randn_like(b)), torch.zeros(len(b), dtype=torch.long)
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
