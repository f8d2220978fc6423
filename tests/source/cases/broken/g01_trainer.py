import torch
from torch import nn


class Trainer:
    def __init__(self, model, clip=1.0):
        self.model, self.clip = model, clip
        self.optimizer = torch.optim.Adam(model.parameters())
        self.scaler = torch.cuda.amp.GradScaler()

    def clip_gradients(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)  # finding: clip-misplaced

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.clip_gradients()

    def train(self, loader):
        for x, y in loader:
            self.step(x, y)


Trainer(nn.Linear(4, 1)).train([(torch.randn(2, 4), torch.randn(2, 1))] * 5)
