import torch
import torch.nn as nn
import torch.nn.functional as F
from collections import OrderedDict

model = nn.Sequential(OrderedDict([("fc", nn.Linear(3, 4)), ("out", nn.Softmax(dim=1))]))  # finding: double-softmax
opt = torch.optim.SGD(model.parameters(), lr=.1)
crit = nn.CrossEntropyLoss()
for x, y in loader:
    opt.zero_grad(); loss = crit(model(x), y); loss.backward(); opt.step()
