import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(2, 1)
opt = torch.optim.Adam(model.parameters())
for x, y in loader:
    opt.zero_grad()
    loss = nn.functional.mse_loss(np.squeeze(model(x)), y)
    loss.backward()
    opt.step()
