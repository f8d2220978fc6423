import torch
from torch import nn


class Enc(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.GRU(8, 8)

    def forward(self, x):
        return self.r(x)[1]


class Dec(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, h):
        return self.l(h)


def train(enc, dec, opt, n=10):
    for i in range(n):
        opt.zero_grad()
        loss = dec(enc(torch.randn(5, 2, 8))).pow(2).mean()
        loss.backward()
        opt.step()


def main():
    enc = Enc()
    dec = Dec()  # finding: params-not-in-optimizer
    opt = torch.optim.Adam(enc.parameters())
    train(enc, dec, opt)


main()
