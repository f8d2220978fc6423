import torch
from torch import nn


class T:
    def __init__(self):
        self.m = nn.Linear(4, 1)
        self.opt = torch.optim.Adam(self.m.parameters())

    def loss(self, x, y):
        l = nn.functional.mse_loss(self.m(x), y)
        return float(l)  # finding: loss-detached

    def fit(self):
        for i in range(10):
            l = self.loss(torch.randn(2, 4), torch.randn(2, 1))
            l = torch.tensor(l, requires_grad=True)
            self.opt.zero_grad()
            l.backward()
            self.opt.step()


T().fit()
