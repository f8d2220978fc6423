import torch
from torch import nn
from torch.nn import functional as F


class Fit:
    def __init__(self):
        self.model = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.decay = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)  # finding: scheduler-misuse

    def run(self, batches):
        for _ in range(5):
            for x in batches:
                self.optimizer.zero_grad()
                F.cross_entropy(self.model(x), torch.randint(0, 2, (8,))).backward()
                self.optimizer.step()


Fit().run(torch.randn(16, 8, 3))
