import torch
from torch import nn


class Trainer:
    def __init__(self, config, added):
        if config.indices is None:
            config.indices = {"embed": [1]}
            added = config.indices["embed"]
        config.indices["embed"].extend(added)


xs = [nn.Linear(1, 1)]
xs.extend(xs)
model = nn.Sequential(*xs)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in [(torch.zeros(1), torch.zeros(1))]:
    optimizer.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    optimizer.step()
