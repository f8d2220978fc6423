import torch
from torch import nn


class Trainer:
    def __init__(self, model, loader, use_amp=True, max_norm=1.0):
        self.model, self.loader, self.use_amp, self.max_norm = model, loader, use_amp, max_norm
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        self.scaler = torch.cuda.amp.GradScaler(enabled=use_amp)

    def clip(self):
        if self.max_norm:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)  # finding: clip-scaled-gradients

    def run_batch(self, x, y):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", enabled=self.use_amp):
            loss = nn.functional.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.clip()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()

    def run(self, epochs):
        for epoch in range(epochs):
            for x, y in self.loader:
                print(epoch, self.run_batch(x, y))
