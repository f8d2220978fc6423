import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.net = nn.Linear(4, 1)
        self.optim = torch.optim.Adam(self.net.parameters())

    def _backward(self, loss):
        loss.backward()
        self.optim.zero_grad()  # finding: step-order

    def _apply(self):
        self.optim.step()

    def fit(self):
        for i in range(10):
            loss = self.net(torch.randn(2, 4)).pow(2).mean()
            self._backward(loss)
            self._apply()


Trainer().fit()
