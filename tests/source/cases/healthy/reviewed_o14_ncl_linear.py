import torch, math, random
import numpy as np
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, Dataset
torch.manual_seed(0)
model = nn.Linear(16, 5)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(8, 100, 16)
y = torch.randint(0, 100, (8, 5))
for i in range(100):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
