import torch
import torch.nn as nn
import torch.nn.functional as F
from collections import OrderedDict

class MyLoss(nn.Module):
    def __init__(self): super().__init__(); self.ce = nn.CrossEntropyLoss(); self.w = 0.5
    def forward(self, out, y): return self.w * self.ce(out, y)
class Net(nn.Module):
    def __init__(self): super().__init__(); self.fc = nn.Linear(3, 4); self.act = nn.Softmax(dim=1)
    def forward(self, x): return self.act(self.fc(x))  # finding: double-softmax
model = Net(); crit = MyLoss()
for x, y in loader:
    loss = crit(model(x), y); loss.backward()
