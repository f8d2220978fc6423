import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def run_batch(self, x, y, train: bool = True):
        with torch.set_grad_enabled(train):
            loss = nn.functional.cross_entropy(self.model(x), y)
        if train:
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
        return loss.item()

    def fit(self, loader):
        for epoch in range(3):
            for x, y in loader:
                self.run_batch(x, y)
            for x, y in loader:
                self.run_batch(x, y, train=False)


Trainer().fit([(torch.randn(2, 4), torch.randint(0, 2, (2,)))])
