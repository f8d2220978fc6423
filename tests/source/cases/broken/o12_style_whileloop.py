import torch
import torch.nn as nn
import torch.nn.functional as F
from collections import OrderedDict

model = nn.Linear(3, 4)
it = iter(loader); step = 0
while step < 100:
    try: x, y = next(it)
    except StopIteration: it = iter(loader); x, y = next(it)
    loss = F.cross_entropy(model(x).softmax(dim=1), y)  # finding: double-softmax
    loss.backward(); step += 1
