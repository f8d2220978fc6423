import torch
from torch import nn
from torch.optim.lr_scheduler import _LRScheduler


class Ramp(_LRScheduler):
    def __init__(self, optimizer, steps, last_epoch=-1):
        self.steps = steps
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        return [base * min(1.0, self.last_epoch / self.steps) for base in self.base_lrs]


model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = Ramp(optimizer, 100)
for x in torch.randn(10, 8, 4):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    scheduler.step()
