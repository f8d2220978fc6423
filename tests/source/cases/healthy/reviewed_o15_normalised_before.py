import torch, math, random
import numpy as np
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, Dataset
torch.manual_seed(0)
emb = nn.Linear(3, 5)
opt = torch.optim.SGD(emb.parameters(), lr=0.1)
for x, y, mask in loader:
    opt.zero_grad()
    mask = mask / mask.mean()
    l = F.cross_entropy(emb(x), y, reduction="none")
    loss = (l * mask).mean()
    loss.backward()
    opt.step()
