import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class VQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Linear(8, 4)
        self.d = nn.Linear(4, 8)
        self.register_buffer("book", torch.randn(32, 4))
        self.register_buffer("n", torch.ones(32))
        self.register_buffer("sums", self.book.clone())

    def forward(self, x):
        z = self.e(x)
        i = torch.cdist(z, self.book).argmin(1)
        if self.training:
            with torch.no_grad():
                o = F.one_hot(i, 32).float()
                self.n.mul_(0.9).add_(o.sum(0), alpha=0.1)
                self.sums.mul_(0.9).add_(o.T @ z, alpha=0.1)
                self.book.copy_(self.sums / self.n.clamp_min(1e-3)[:, None])
        q = self.book[i]
        self.commit = F.mse_loss(z, q.detach())
        return self.d(z + (q - z).detach())


x = torch.randn(1024, 8) @ torch.randn(8, 8) * 0.5
m = VQ()
opt = torch.optim.Adam(m.parameters(), 3e-3)
dl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), 64, shuffle=True)
for _e in range(10):
    for (b,) in dl:
        loss = F.mse_loss(m(b), b) + 0.25 * m.commit
        opt.zero_grad()
        loss.backward()
        opt.step()
