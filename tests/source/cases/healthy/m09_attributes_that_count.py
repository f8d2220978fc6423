"""requires_grad on tensors, sizes set together with the weights, switches of the user's own."""

import torch
from torch import nn
from torchvision import models


class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.requires_grad = True

    def forward(self, x):
        return self.linear(x) if self.requires_grad else self.linear(x).detach()


class Config:
    trainable = True
    require_grad = True


def prune(layer, keep):
    layer.weight = nn.Parameter(layer.weight[:keep].detach())
    layer.bias = nn.Parameter(layer.bias[:keep].detach())
    layer.out_features = keep


torch.manual_seed(0)
config = Config()
config.trainable = False
config.require_grad = False
backbone = models.resnet18()
backbone.conv1.weight.requires_grad = False
backbone.fc.bias.requires_grad = False
adapter, head = Adapter(), nn.Linear(4, 8)
adapter.requires_grad = True
prune(head, 2)
head.bias.requires_grad = False
for child in adapter.children():
    for p in child.parameters():
        p.requires_grad = True
model = nn.Sequential(adapter, head)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
for step in range(10):
    x, y = torch.randn(8, 4), torch.randint(0, 2, (8,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
