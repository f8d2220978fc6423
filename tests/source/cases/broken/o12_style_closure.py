import torch
import torch.nn as nn
import torch.nn.functional as F
from collections import OrderedDict

model = nn.Linear(3, 4)
opt = torch.optim.LBFGS(model.parameters())
for x, y in loader:
    def closure():
        opt.zero_grad()
        loss = F.cross_entropy(torch.softmax(model(x), 1), y)  # finding: double-softmax
        loss.backward()
        return loss
    opt.step(closure)
