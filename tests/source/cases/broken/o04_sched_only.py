import torch
from torch import nn
from torch.optim import lr_scheduler


class Trainer:
    def __init__(self, model, cfg):
        self.model = model
        self.optimizer = getattr(torch.optim, cfg["opt"])(model.parameters(), lr=0.1)
        self.scheduler = lr_scheduler.CosineAnnealingLR(self.optimizer, 10)

    def train(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(x), y)
            loss.backward()  # finding: step-order
            self.scheduler.step()


Trainer(nn.Linear(4, 2), {"opt": "SGD"}).train([(torch.randn(2, 4), torch.randint(0, 2, (2,)))])
