import torch
from torch import nn


class Executor:
    def __init__(self, model, scaler=None):
        self.model, self.scaler = model, scaler

    def forward_backward(self, x, y):
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()


class Trainer:
    def __init__(self, executor, optimizer):
        self.executor, self.optimizer = executor, optimizer

    def train_step(self, x, y):
        self.executor.forward_backward(x, y)
        if self.executor.scaler is not None:
            self.executor.scaler.step(self.optimizer)
            self.executor.scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad()


torch.manual_seed(0)
model = nn.Linear(4, 2)
trainer = Trainer(Executor(model, torch.amp.GradScaler()), torch.optim.SGD(model.parameters(), lr=0.1))
for x, y in loader:
    trainer.train_step(x, y)
