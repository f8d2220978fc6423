import torch
import torch.nn as nn
import torch.nn.functional as F
from collections import OrderedDict

from lightning.fabric import Fabric
fabric = Fabric()
model = nn.Linear(3, 4); opt = torch.optim.AdamW(model.parameters())
model, opt = fabric.setup(model, opt)
for x, y in loader:
    opt.zero_grad()
    loss = F.cross_entropy(F.softmax(model(x), 1), y)  # finding: double-softmax
    fabric.backward(loss)
    opt.step()
