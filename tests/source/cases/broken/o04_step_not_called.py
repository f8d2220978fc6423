import torch
from torch import nn

m = nn.Linear(4, 2)
opt = torch.optim.Adam(m.parameters())
for i in range(100):
    opt.zero_grad()
    loss = nn.functional.mse_loss(m(torch.randn(2, 4)), torch.randn(2, 2))
    loss.backward()
    opt.step  # finding: statement-without-effect
