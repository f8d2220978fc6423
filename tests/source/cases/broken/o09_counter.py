import torch
from torch import nn


class Trainer:
    def __init__(self, model, every=4):
        self.model, self.every, self.pending = model, every, 0
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")
        self.loss_fn = nn.BCEWithLogitsLoss()

    def fit(self, loader):
        self.optimizer.zero_grad()
        for x, y in loader:
            with torch.autocast("cuda"):
                loss = self.loss_fn(self.model(x), y)
            self.scaler.scale(loss).backward()  # finding: accumulation-not-divided
            self.pending += 1
            if self.pending >= self.every:
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
                self.pending = 0
