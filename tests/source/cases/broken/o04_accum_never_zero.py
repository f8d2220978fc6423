import torch
from torch import nn

m = nn.Linear(4, 2)
opt = torch.optim.Adam(m.parameters())
accum = 4
for i in range(100):
    loss = nn.functional.mse_loss(m(torch.randn(2, 4)), torch.randn(2, 2)) / accum
    loss.backward()
    if (i + 1) % accum == 0:
        opt.step()  # finding: step-order
