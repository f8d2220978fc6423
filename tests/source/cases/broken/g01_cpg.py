import torch
from torch import nn

class T:
    def __init__(self, m):
        self.m = m
        self.params = list(m.parameters())
        self.opt = torch.optim.Adam(self.params)

    def run(self):
        for i in range(10):
            self.opt.zero_grad()
            loss = self.m(torch.randn(2, 4)).mean()
            loss.backward()
            self.opt.step()
            nn.utils.clip_grad_norm_(self.params, 1.0)  # finding: clip-misplaced


T(nn.Linear(4, 1)).run()
