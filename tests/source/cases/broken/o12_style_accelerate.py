import torch
import torch.nn as nn
import torch.nn.functional as F
from collections import OrderedDict

from accelerate import Accelerator
accelerator = Accelerator()
model = nn.Linear(3, 4); opt = torch.optim.AdamW(model.parameters())
model, opt, loader = accelerator.prepare(model, opt, loader)
for batch in loader:
    with accelerator.accumulate(model):
        out = model(batch["x"]).softmax(-1)  # finding: double-softmax
        loss = F.cross_entropy(out, batch["y"])
        accelerator.backward(loss)
        opt.step(); opt.zero_grad()
