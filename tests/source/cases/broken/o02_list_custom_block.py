import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.attn = nn.MultiheadAttention(d, 2)
        self.ff = nn.Linear(d, d)

    def forward(self, x):
        return x + self.ff(self.attn(x, x, x)[0])


class Enc(nn.Module):
    def __init__(self, d, n):
        super(Enc, self).__init__()
        self.blocks = [Block(d) for _ in range(n)]  # finding: params-not-in-optimizer
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        for b in self.blocks:
            x = b(x)
        return self.norm(x)


e = Enc(8, 2)
opt = torch.optim.Adam(e.parameters())
for i in range(10):
    opt.zero_grad()
    e(torch.randn(3, 2, 8)).pow(2).mean().backward()
    opt.step()
