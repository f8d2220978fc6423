import torch
import torch.nn as nn
import torch.nn.functional as F
from collections import OrderedDict

def build(name):
    if name == "mlp": return nn.Sequential(nn.Linear(3, 4), nn.Softmax(1))  # finding: double-softmax
    return nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 4), nn.Softmax(1))
model = build(cfg.name).to("cuda")
model = nn.DataParallel(model)
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
