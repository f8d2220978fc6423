import torch, math, random
import numpy as np
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, Dataset
torch.manual_seed(0)
logits = torch.randn(8, 100, 5, requires_grad=True)
opt = torch.optim.SGD([logits], lr=0.1)
y = torch.randint(0, 100, (8, 5))
for i in range(100):
    opt.zero_grad()
    F.cross_entropy(logits, y).backward()
    opt.step()
