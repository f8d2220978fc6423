"""A Generator that has nothing to do with random numbers."""

import torch
import torch.nn.functional as F
from torch import nn

from mazes import Generator
from torch.utils.data import DataLoader, Dataset


class Mazes(Dataset):
    def __init__(self, count):
        self.count = count
        self.generator = Generator(count)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.generator.maze(index)


loader = DataLoader(Mazes(10), num_workers=4, shuffle=True)
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
