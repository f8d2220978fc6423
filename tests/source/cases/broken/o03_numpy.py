import numpy as np
import torch
from torch import nn


def custom_loss(pred, target):
    p = pred.detach().numpy()  # finding: loss-detached
    t = target.numpy()
    return torch.tensor(np.mean((p - t) ** 2), requires_grad=True)


m = nn.Linear(4, 1)
opt = torch.optim.Adam(m.parameters())
for i in range(10):
    x, y = torch.randn(2, 4), torch.randn(2, 1)
    loss = custom_loss(m(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
