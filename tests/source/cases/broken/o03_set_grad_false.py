import torch
from torch import nn

torch.set_grad_enabled(False)  # finding: loss-detached
m = nn.Linear(4, 2)
opt = torch.optim.Adam(m.parameters())
for i in range(10):
    loss = nn.functional.cross_entropy(m(torch.randn(2, 4)), torch.randint(0, 2, (2,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
