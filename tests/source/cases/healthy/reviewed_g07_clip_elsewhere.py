import torch, math, random
import numpy as np
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, Dataset
torch.manual_seed(0)
from lib import fit
rnn = nn.LSTM(3, 8); head = nn.Linear(8, 2)
opt = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1)
for p in rnn.parameters():
    p.register_hook(lambda g: torch.clamp(g, -1, 1))
for x, y in loader:
    opt.zero_grad(); F.cross_entropy(head(rnn(x)[0][-1]), y).backward(); opt.step()
