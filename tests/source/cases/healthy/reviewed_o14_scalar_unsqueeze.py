import torch, math, random
import numpy as np
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, Dataset
torch.manual_seed(0)
model = nn.Linear(3, 5)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
X, Y = torch.randn(100, 3), torch.randint(0, 5, (100,))
for i in range(100):
    opt.zero_grad()
    loss = F.cross_entropy(model(X[i].unsqueeze(0)), Y[i].unsqueeze(-1))
    loss.backward()
    opt.step()
