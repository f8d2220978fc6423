import torch
from torch import nn


class Trainer:
    def __init__(self, *args, **kwargs):
        self.model = kwargs["model"]
        self.optimizer = kwargs["optimizer"]
        self.scheduler = kwargs.get("scheduler")
        self.loader = kwargs.pop("loader", None)

    def train(self, epochs):
        for _ in range(epochs):
            for x, y in self.loader:
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(x), y).backward()
                self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()  # finding: scheduler-misuse


def main(loader, epochs):
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
    Trainer(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader).train(epochs)
