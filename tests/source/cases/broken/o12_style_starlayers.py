import torch
import torch.nn as nn
import torch.nn.functional as F
from collections import OrderedDict

layers = []
for i in range(3):
    layers.append(nn.Linear(3, 3)); layers.append(nn.ReLU())
layers.append(nn.Linear(3, 4)); layers.append(nn.Softmax(dim=-1))  # finding: double-softmax
model = nn.Sequential(*layers)
crit = nn.CrossEntropyLoss()
for x, y in loader:
    loss = crit(model(x), y); loss.backward()
