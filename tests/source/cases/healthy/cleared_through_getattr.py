import torch
from torch import nn
class T:
    def __init__(self):
        self.model = nn.Linear(4, 1)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
    def on_start(self): self.opt.zero_grad()
    def fit(self):
        for i in range(10):
            getattr(self, "on_start")()
            loss = self.model(torch.randn(2, 4)).pow(2).mean()
            loss.backward()
            self.opt.step()
T().fit()
