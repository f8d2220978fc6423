import torch
import torch.nn as nn
import torch.nn.functional as F
from collections import OrderedDict

class Net(nn.Module):
    def __init__(self): super().__init__(); self.fc = nn.Linear(3, 4)
    def forward(self, x): return {"probs": F.softmax(self.fc(x), dim=1), "logits": self.fc(x)}  # finding: double-softmax
model = Net()
for x, y in loader:
    out = model(x)
    F.cross_entropy(out["probs"], y).backward()
