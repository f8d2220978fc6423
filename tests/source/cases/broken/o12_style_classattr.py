import torch
import torch.nn as nn
import torch.nn.functional as F
from collections import OrderedDict

class T:
    criterion = nn.CrossEntropyLoss()
    def __init__(self, model): self.model = model
    def step(self, x, y):
        p = torch.softmax(self.model(x), -1)  # finding: double-softmax
        return self.criterion(p, y)
t = T(nn.Linear(3, 4))
for x, y in loader:
    loss = t.step(x, y); loss.backward()
