"""Dropout deep inside lists of blocks, between the layers of an LSTM, and of a share that is set elsewhere."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, share):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(share))

    def forward(self, x):
        return x + self.layers(x)


class Stack(nn.Module):
    def __init__(self, width, depth, share):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width, share) for _ in range(depth)])
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(10, 32, num_layers=2, batch_first=True, dropout=0.3)
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def blocks(config, train_loader, val_loader):
    model = Stack(16, 4, config.dropout)
    optimizer = torch.optim.Adam(model.parameters())
    model.train()
    for _ in range(5):
        for x, y in train_loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()  # finding: wrong-mode
        with torch.no_grad():
            print(sum(F.cross_entropy(model(x), y).item() for x, y in val_loader))


def recurrent(train_loader, val_loader):
    model = nn.SyncBatchNorm.convert_sync_batchnorm(Reader())
    optimizer = torch.optim.Adam(model.parameters())
    model.train()
    for _ in range(5):
        for x, y in train_loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()  # finding: wrong-mode
        with torch.no_grad():
            print(sum(F.cross_entropy(model(x), y).item() for x, y in val_loader))


def recording(train_loader, inputs, labels):
    net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.train()
    for _ in range(3):
        for x, y in train_loader:
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        net.eval()  # finding: wrong-mode
        print((net(inputs).argmax(1) == labels).float().mean())
