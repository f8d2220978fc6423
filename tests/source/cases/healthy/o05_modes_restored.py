"""Evaluations that leave the mode as it was, copies, last epochs and models that do not care."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 8)
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        if self.training:
            x = F.dropout(x, 0.1)
        return self.out(self.drop(self.fc(x)))

    def forward_mc(self, x):
        return F.dropout(self.fc(x), 0.3)


def evaluate(model, loader):
    was_training = model.training
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train(was_training)
    return right


def run_epoch(model, loader, optimizer, training):
    model.train() if training else model.eval()
    for x, y in loader:
        with torch.set_grad_enabled(training):
            loss = F.cross_entropy(model(x), y)
        if training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def average(model, optimizer, loader):
    ema = copy.deepcopy(model)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        ema.eval()
        with torch.no_grad():
            print(ema(x))


def plain(loader):
    """No layer of this model reads the mode."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            print(model(loader[0][0]))


def at_the_end(model, optimizer, loader, epochs=3):
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        if epoch == epochs - 1:
            model.eval()
            with torch.no_grad():
                print(model(loader[0][0]))


torch.manual_seed(0)
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
batches = [(torch.randn(4, 4), torch.randint(0, 2, (4,)))]
for epoch in range(3):
    run_epoch(net, batches, opt, True)
    run_epoch(net, batches, opt, False)
for epoch in range(3):
    net.train()
    for x, y in batches:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
    print(evaluate(net, batches))
average(net, opt, batches)
plain(batches)
at_the_end(net, opt, batches)
