import torch
from torch import nn


class WarmupSchedule:
    """Sets the rate of the step that comes, so it goes first."""

    def __init__(self, optimizer):
        self.optimizer, self.turn = optimizer, 0

    def step(self):
        self.turn += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, self.turn / 100)


def train(model, loader, optimizer, scheduler):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        scheduler.step()
        optimizer.step()


def denoise(unet, scheduler, sample, optimizer):
    decay = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for t in scheduler.timesteps:
        sample = scheduler.step(unet(sample, t), t, sample).prev_sample
    decay.step()
    return sample
