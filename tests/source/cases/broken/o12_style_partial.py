import torch
import torch.nn as nn
import torch.nn.functional as F
from collections import OrderedDict

from functools import partial
crit = partial(F.cross_entropy, label_smoothing=0.1)
model = nn.Linear(3, 4)
for x, y in loader:
    crit(F.softmax(model(x), dim=1), y).backward()  # finding: double-softmax
