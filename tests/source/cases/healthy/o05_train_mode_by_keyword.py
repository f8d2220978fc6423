"""train(mode=False) is eval(), in a file that never says eval."""

import torch
import torch.nn.functional as F
from torch import nn

model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def validate(loader):
    model.train(mode=False)
    with torch.no_grad():
        for x, y in loader:
            print(F.cross_entropy(model(x), y).item())
    model.train(mode=True)


def fit(train_loader, val_loader):
    for _ in range(3):
        for x, y in train_loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        validate(val_loader)
