import argparse
import torch
from torch import nn
from torchvision import models

ap = argparse.ArgumentParser()
ap.add_argument("--train-layers", nargs="+", default=["fc"])
args = ap.parse_args()
model = models.resnet18()
model.requires_grad_(False)
for name in args.train_layers:
    getattr(model, name).requires_grad_(True)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for i in range(10):
    loss = nn.functional.cross_entropy(model(torch.randn(2, 3, 64, 64)), torch.randint(0, 1000, (2,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
