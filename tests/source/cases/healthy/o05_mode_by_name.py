"""The mode is fetched by its name."""

import torch
import torch.nn.functional as F
from torch import nn

net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def switch(mode):
    getattr(net, mode)()


def fit(train_loader, val_loader):
    for _ in range(3):
        switch("train")
        for x, y in train_loader:
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        switch("eval")
        with torch.no_grad():
            for x, y in val_loader:
                print(F.cross_entropy(net(x), y).item())
