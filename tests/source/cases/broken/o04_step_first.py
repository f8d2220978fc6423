import torch
from torch import nn


def train(model, data, optimizer, criterion):
    for x, y in data:
        optimizer.zero_grad()
        out = model(x)
        loss = criterion(out, y)
        optimizer.step()  # finding: step-order
        loss.backward()


m = nn.Linear(4, 2)
train(m, [(torch.randn(2, 4), torch.randint(0, 2, (2,)))], torch.optim.Adam(m.parameters()), nn.CrossEntropyLoss())
