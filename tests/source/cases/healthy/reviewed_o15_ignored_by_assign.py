import torch, math, random
import numpy as np
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, Dataset
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(100, 8, padding_idx=0)
        self.o = nn.Linear(8, 100)
    def forward(self, x):
        return self.o(self.e(x))
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    opt.zero_grad()
    y[y == 0] = -100
    loss = F.cross_entropy(model(x).view(-1, 100), y.view(-1))
    loss.backward()
    opt.step()
